// Package apiserver finds the way to the API server for the programs of a network. Without a network there are no services, so they must
// be able to do without the service's address.
package apiserver

import (
	"fmt"
	"net/url"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Config returns how to reach the API server: as the kubeconfig says or, without one, as a pod's service account. A server, which is a
// URL, goes before the kubeconfig's and before the address of the service.
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
		return nil, fmt.Errorf("no --kubeconfig, and not in a pod that could do without: %w", err)
	}
	if server != "" {
		c.Host = server
	}
	return c, nil
}
