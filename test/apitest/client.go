package apitest

import (
	"path/filepath"
	"testing"

	network "github.com/openshift/client-go/network/clientset/versioned"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Clients returns clients of Kubernetes' objects and of ours.
func Clients(tb testing.TB, config *rest.Config) (kubernetes.Interface, network.Interface) {
	tb.Helper()
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		tb.Fatal(err)
	}
	ours, err := network.NewForConfig(config)
	if err != nil {
		tb.Fatal(err)
	}
	return kube, ours
}

// Disconnect ends the connections of Clients, whose goroutines are no leak of what is tested.
func Disconnect(kube kubernetes.Interface, ours network.Interface) {
	for _, client := range []rest.Interface{kube.CoreV1().RESTClient(), ours.NetworkV1().RESTClient()} {
		if c, ok := client.(*rest.RESTClient); ok {
			c.Client.CloseIdleConnections()
		}
	}
}

// AsServiceAccount returns an administrator's configuration with that account's rights in place of his own.
func AsServiceAccount(admin *rest.Config, namespace, name string) *rest.Config {
	own := rest.CopyConfig(admin)
	own.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + namespace + ":" + name,
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"},
	}
	return own
}

// Kubeconfig writes the configuration into a file for programs, and returns its path.
func Kubeconfig(tb testing.TB, config *rest.Config) string {
	tb.Helper()
	const name = "test"
	path := filepath.Join(tb.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{name: {Server: config.Host, CertificateAuthorityData: config.CAData}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{name: {
			ClientCertificateData: config.CertData, ClientKeyData: config.KeyData,
			Impersonate: config.Impersonate.UserName, ImpersonateGroups: config.Impersonate.Groups,
		}},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: name}},
		CurrentContext: name,
	}, path); err != nil {
		tb.Fatal(err)
	}
	return path
}
