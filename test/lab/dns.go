package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/ovsdn/ovsdn/test/lab/components"
	"github.com/ovsdn/ovsdn/test/lab/controlplane"
)

// clusterDomain is the domain of services' names.
const clusterDomain = "cluster.local"

// Names of the cluster's DNS, as kubeadm has them.
const (
	dnsNamespace  = metav1.NamespaceSystem
	dnsDeployment = "coredns"
	dnsLabel      = "k8s-app=kube-dns"
)

// dnsHost is the number of the DNS's address in the service network, as kubeadm has it.
const dnsHost = 10

// DNSAddr is the address of service kube-dns.
func (s Shape) DNSAddr() netip.Addr {
	addr := s.ServiceNetwork.Addr().As4()
	addr[3] += dnsHost // a service network has at least 16 addresses
	return netip.AddrFrom4(addr)
}

// applyDNS creates the objects of the cluster's DNS. Its pod is Pending until a node is ready, and nothing waits for it.
func (l *Lab) applyDNS(ctx context.Context) error {
	config, err := l.RESTConfig()
	if err != nil {
		return err
	}
	if err := controlplane.ApplyManifest(ctx, config, "cluster DNS", []byte(dnsManifest(l.state.Shape))); err != nil {
		return fmt.Errorf("install CoreDNS: %w", err)
	}
	return nil
}

// WaitDNS returns when the cluster's DNS answers.
func (l *Lab) WaitDNS(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("timeout after %v", patience))
	defer cancel()
	if _, stderr, err := l.Kubectl(ctx, "--namespace", dnsNamespace, "rollout", "status", "deployment/"+dnsDeployment); err != nil {
		return errors.Join(fmt.Errorf("rollout of CoreDNS: %w: %s", err, strings.TrimSpace(stderr)), context.Cause(ctx))
	}
	return nil
}

// startDNS lets the cluster have the pod of its DNS.
func (l *Lab) startDNS(ctx context.Context) error { return l.scaleDNS(ctx, 1) }

// stopDNS returns when no pod of the cluster's DNS exists.
func (l *Lab) stopDNS(ctx context.Context) error {
	if err := l.scaleDNS(ctx, 0); err != nil {
		return err
	}
	client, err := l.Client()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("timeout after %v", patience))
	defer cancel()
	if err := wait.PollUntilContextCancel(ctx, nodesInterval, true, func(ctx context.Context) (bool, error) {
		pods, err := client.CoreV1().Pods(dnsNamespace).List(ctx, metav1.ListOptions{LabelSelector: dnsLabel})
		return err == nil && len(pods.Items) == 0, nil
	}); err != nil {
		return fmt.Errorf("delete the pod of CoreDNS: %w", context.Cause(ctx))
	}
	return nil
}

func (l *Lab) scaleDNS(ctx context.Context, replicas int) error {
	client, err := l.Client()
	if err != nil {
		return err
	}
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas)
	if _, err := client.AppsV1().Deployments(dnsNamespace).Patch(ctx, dnsDeployment, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("scale CoreDNS to %d: %w", replicas, err)
	}
	return nil
}

// corefile refuses names outside of the cluster, unless they are forwarded: a lab has no way to servers of the internet. The answers for the cluster
// come from CoreDNS's memory; with a cache a test would have to wait until the name of its service is not cached as missing.
func corefile(s Shape) string {
	text := clusterDomain + `:53 in-addr.arpa:53 ip6.arpa:53 {
    errors
    ready
    kubernetes ` + clusterDomain + ` in-addr.arpa ip6.arpa {
        pods insecure
    }
}
`
	if s.DNSForward != "" {
		text += `.:53 {
    errors
    forward . ` + s.DNSForward + `
    cache 30
}
`
	}
	return text
}

func dnsManifest(s Shape) string {
	return strings.NewReplacer("ADDRESS", s.DNSAddr().String(), "IMAGE", components.DNSRef,
		"COREFILE", strings.ReplaceAll(strings.TrimSpace(corefile(s)), "\n", "\n    ")).Replace(dnsTemplate)
}

// dnsTemplate is kubeadm's manifest, with one replica. CoreDNS has no liveness probe: tests cut its network, and a new container would not
// repair it.
const dnsTemplate = `apiVersion: v1
kind: Namespace
metadata: {name: kube-system}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: coredns, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: system:coredns}
rules:
- {apiGroups: [""], resources: [services, namespaces], verbs: [list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: system:coredns}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: system:coredns}
subjects:
- {kind: ServiceAccount, name: coredns, namespace: kube-system}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: coredns, namespace: kube-system}
data:
  Corefile: |
    COREFILE
---
apiVersion: v1
kind: Service
metadata:
  name: kube-dns
  namespace: kube-system
  labels: {k8s-app: kube-dns}
spec:
  selector: {k8s-app: kube-dns}
  clusterIP: ADDRESS
  ports:
  - {name: dns, port: 53, protocol: UDP}
  - {name: dns-tcp, port: 53, protocol: TCP}
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: coredns
  namespace: kube-system
  labels: {k8s-app: kube-dns}
spec:
  replicas: 1
  selector:
    matchLabels: {k8s-app: kube-dns}
  template:
    metadata:
      labels: {k8s-app: kube-dns}
    spec:
      serviceAccountName: coredns
      priorityClassName: system-cluster-critical
      dnsPolicy: Default
      tolerations:
      - {key: CriticalAddonsOnly, operator: Exists}
      - {key: node-role.kubernetes.io/control-plane, operator: Exists, effect: NoSchedule}
      terminationGracePeriodSeconds: 1
      containers:
      - name: coredns
        image: IMAGE
        imagePullPolicy: Never
        args: [-conf, /etc/coredns/Corefile]
        ports:
        - {name: dns, containerPort: 53, protocol: UDP}
        - {name: dns-tcp, containerPort: 53, protocol: TCP}
        readinessProbe:
          httpGet: {path: /ready, port: 8181}
          periodSeconds: 1
        securityContext:
          allowPrivilegeEscalation: false
          readOnlyRootFilesystem: true
          capabilities: {add: [NET_BIND_SERVICE], drop: [ALL]}
        volumeMounts:
        - {name: config, mountPath: /etc/coredns, readOnly: true}
      volumes:
      - name: config
        configMap: {name: coredns}
`
