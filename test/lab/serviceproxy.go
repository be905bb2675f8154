package lab

import (
	"github.com/ovsdn/ovsdn/test/lab/components"
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
	spec.Files[kubeDir+"/kube-proxy.yaml"] = components.KubeProxyYAML(spec.Name, s.Shape.ClusterNetwork, kubeDir+"/kube-proxy.kubeconfig")
	spec.Units = append(spec.Units, machine.Unit{Name: kubeProxyUnit, Manual: true, After: []string{"underlay"}, Commands: [][]string{{
		"kube-proxy", "--config=" + kubeDir + "/kube-proxy.yaml",
	}}})
	return nil
}
