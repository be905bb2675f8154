// Package apiserver builds the client configuration of the controller and the node agent. Both must work without the cluster's service network,
// which depends on them.
package apiserver

import (
	"cmp"
	"fmt"
	"net/netip"
	"net/url"
	"strconv"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Config returns the client configuration of the kubeconfig, or without one, of the pod's service account. If server is set, it is the URL of the
// API server instead of that of the kubeconfig or of the service "kubernetes".
func Config(kubeconfig, server string) (*rest.Config, error) {
	if server != "" {
		if u, err := url.Parse(server); err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" {
			return nil, fmt.Errorf("--kube-apiserver=%q: write a URL, such as https://192.0.2.10:6443", server)
		}
	}
	if kubeconfig != "" {
		c, err := clientcmd.BuildConfigFromFlags(server, kubeconfig)
		if err != nil {
			return nil, fmt.Errorf("--kubeconfig %s: %w", kubeconfig, err)
		}
		return c, nil
	}
	c, err := rest.InClusterConfig()
	if err != nil {
		return nil, fmt.Errorf("no --kubeconfig, and no service account of a pod: %w", err)
	}
	if server == "" {
		c.Wrap(nameSetting)
		return c, nil
	}
	c.Host = server
	return c, nil
}

// Address returns the address and port of the API server of a client; false if the client knows it by a host name, which is not resolved.
func Address(client *rest.Config) (at netip.AddrPort, ok bool) {
	server, _, err := rest.DefaultServerUrlFor(client)
	if err != nil {
		return at, false
	}
	addr, err := netip.ParseAddr(server.Hostname())
	if err != nil {
		return at, false
	}
	defaultPort := map[string]string{"http": "80", "https": "443"}[server.Scheme]
	port, err := strconv.ParseUint(cmp.Or(server.Port(), defaultPort), 10, 16)
	if err != nil {
		return at, false
	}
	return netip.AddrPortFrom(addr.Unmap(), uint16(port)), true
}
