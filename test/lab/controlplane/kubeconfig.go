package controlplane

import (
	"fmt"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/ovsdn/ovsdn/test/lab/pki"
)

// Credentials are what a client proves itself with: a certificate or a bearer token.
type Credentials struct {
	Pair  pki.Pair
	Token string
}

// Kubeconfig makes a kubeconfig that holds all it needs, for a client that reaches the API server at the URL.
func (p *Plane) Kubeconfig(url string, credentials Credentials) ([]byte, error) {
	const name = "lab"
	content, err := clientcmd.Write(clientcmdapi.Config{
		Clusters: map[string]*clientcmdapi.Cluster{name: {Server: url, CertificateAuthorityData: p.AuthorityPEM()}},
		AuthInfos: map[string]*clientcmdapi.AuthInfo{name: {
			ClientCertificateData: credentials.Pair.Cert, ClientKeyData: credentials.Pair.Key, Token: credentials.Token,
		}},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: name}},
		CurrentContext: name,
	})
	if err != nil {
		return nil, fmt.Errorf("encode a kubeconfig: %w", err)
	}
	return content, nil
}

// AdminKubeconfig is the kubeconfig of a user who may do everything, at a URL of the API server.
func (p *Plane) AdminKubeconfig(url string) ([]byte, error) {
	pair, err := p.readPair(admin)
	if err != nil {
		return nil, fmt.Errorf("keys of the administrator: %w", err)
	}
	return p.Kubeconfig(url, Credentials{Pair: pair})
}

// AdminConfig is the same for Go clients, without a rate limit.
func (p *Plane) AdminConfig(url string) (*rest.Config, error) {
	kubeconfig, err := p.AdminKubeconfig(url)
	if err != nil {
		return nil, err
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("parse the administrator's kubeconfig: %w", err)
	}
	config.QPS = -1
	return config, nil
}
