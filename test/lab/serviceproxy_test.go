package lab

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ovsdn/ovsdn/test/lab/controlplane"
	"github.com/ovsdn/ovsdn/test/lab/machine"
)

// A node has kube-proxy unless the switch implements services, and the cluster's configuration has the same choice.
func TestServiceProxy(t *testing.T) {
	plane, err := controlplane.Prepare(controlplane.Config{Kube: "/cache/kube", Dir: filepath.Join(t.TempDir(), "cp")})
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		proxy                      ServiceProxy
		units, files, links, start []string
	}{
		{
			External, []string{kubeProxyUnit}, []string{kubeDir + "/kube-proxy.kubeconfig", kubeDir + "/kube-proxy.yaml"},
			[]string{"/usr/local/bin/kube-proxy"}, []string{kubeletUnit, kubeProxyUnit},
		},
		{proxy: OVS, start: []string{kubeletUnit}},
	} {
		t.Run(string(test.proxy), func(t *testing.T) {
			s := state{Shape: DefaultShape()}
			s.Shape.ServiceProxy, s.Programs.Kube = test.proxy, "/cache/kube"
			spec := machine.Spec{Name: "node1", Files: map[string]string{}, Links: map[string]string{}}
			if err := addServiceProxy(&spec, plane, &s); err != nil {
				t.Fatal(err)
			}
			var units []string
			for _, unit := range spec.Units {
				units = append(units, unit.Name)
			}
			for what, lists := range map[string][2][]string{
				"units":         {test.units, units},
				"files":         {test.files, slices.Sorted(maps.Keys(spec.Files))},
				"programs":      {test.links, slices.Sorted(maps.Keys(spec.Links))},
				"started units": {test.start, s.Shape.nodeUnits()},
			} {
				if diff := cmp.Diff(lists[0], lists[1]); diff != "" {
					t.Errorf("%s (-want +got):\n%s", what, diff)
				}
			}
			if setting := "- service-proxy=" + string(test.proxy) + "\n"; !strings.Contains(kustomization("../deploy", &s), setting) {
				t.Errorf("the kustomization does not contain %q", setting)
			}
		})
	}
}
