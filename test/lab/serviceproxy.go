package lab

import (
	"net/netip"

	"github.com/ovsdn/ovsdn/test/lab/controlplane"
	"github.com/ovsdn/ovsdn/test/lab/machine"
)

// kubeProxyUnit is the name of kube-proxy's unit.
const kubeProxyUnit = "kube-proxy"

// nodeUnits are the units of a node that need the API server, except the agent.
func (s Shape) nodeUnits() []string {
	if s.ServiceProxy == OVS {
		return []string{kubeletUnit}
	}
	return []string{kubeletUnit, kubeProxyUnit}
}

// addServiceProxy gives a node kube-proxy with a new key pair, unless the switch implements services. Then no other program may: both would
// translate addresses.
func addServiceProxy(spec *machine.Spec, plane *controlplane.Plane, s *state) error {
	if s.Shape.ServiceProxy == OVS {
		return nil
	}
	pair, err := plane.Issue("system:kube-proxy")
	if err != nil {
		return err
	}
	kubeconfig, err := plane.Kubeconfig(plane.URL(), controlplane.Credentials{Pair: pair})
	if err != nil {
		return err
	}
	addProgram(spec, "kube-proxy", s.Programs.Kube)
	spec.Files[kubeDir+"/kube-proxy.kubeconfig"] = string(kubeconfig)
	spec.Files[kubeDir+"/kube-proxy.yaml"] = kubeProxyYAML(spec.Name, s.Shape.ClusterNetwork)
	spec.Units = append(spec.Units, machine.Unit{Name: kubeProxyUnit, Manual: true, After: []string{"underlay"}, Commands: [][]string{{
		"kube-proxy", "--config=" + kubeDir + "/kube-proxy.yaml",
	}}})
	return nil
}

// kubeProxyYAML: conntrack's limits are the host's and stay as they are.
func kubeProxyYAML(node string, clusterNetwork netip.Prefix) string {
	return `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
hostnameOverride: ` + node + `
clusterCIDR: ` + clusterNetwork.String() + `
clientConnection: {kubeconfig: ` + kubeDir + `/kube-proxy.kubeconfig}
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
`
}
