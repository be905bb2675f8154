package components

import "net/netip"

// KubeProxyYAML returns a configuration of kube-proxy in mode nftables. It does not change the limits of conntrack, which are those of the machine that runs the tests.
func KubeProxyYAML(node string, clusterNetwork netip.Prefix, kubeconfig string) string {
	return `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
hostnameOverride: ` + node + `
clusterCIDR: ` + clusterNetwork.String() + `
clientConnection: {kubeconfig: ` + kubeconfig + `}
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
`
}
