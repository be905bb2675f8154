package certificates

// The objects of the authority, both in Namespace: the Secret has its certificates and its key, the ConfigMap its certificates only.
const (
	Namespace  = "ovsdn-system"
	ObjectName = "ovsdn-diagnostics"

	CertKey   = "tls.crt" // of the Secret; PEM, the current authority first, then the previous one
	KeyKey    = "tls.key" // of the Secret
	BundleKey = "ca.crt"  // of the ConfigMap; as CertKey
)

const (
	// ControllerName is the common name of a controller's client certificate.
	ControllerName = "ovsdn-controller"
	// ServiceName is the DNS name by which kube-apiserver verifies a controller: that of the Service of the APIService.
	ServiceName = "ovsdn-controller-api." + Namespace + ".svc"
	// APIService is the name of the APIService that has the authority in its caBundle.
	APIService = "v1alpha1.diagnostics.ovsdn.io"

	// SignerName is the signer of CertificateSigningRequests of agents.
	SignerName = "ovsdn.io/agent-serving"
	// AgentUser is the user that creates these.
	AgentUser = "system:serviceaccount:" + Namespace + ":ovsdn-node"
	// NodeNameExtra is the field of a user's extra with the node of the pod to which the token was issued. Only the API server can set it.
	NodeNameExtra = "authentication.kubernetes.io/node-name"

	agentNamePrefix   = "system:ovsdn-node:"
	agentServerSuffix = ".agent.ovsdn.io"
)

// AgentName returns the common name of the certificate of a node's agent.
func AgentName(node string) string { return agentNamePrefix + node }

// AgentServerName returns the DNS name of the certificate of a node's agent. It is not the name of the node, which may be an address, or that of the
// controllers' Service.
func AgentServerName(node string) string { return node + agentServerSuffix }
