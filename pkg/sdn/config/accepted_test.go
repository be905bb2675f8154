package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	networkv1 "github.com/openshift/api/network/v1"
)

func TestActiveNetwork(t *testing.T) {
	value, err := openShift().Accepted()
	if err != nil {
		t.Fatal(err)
	}
	// Users read and apply the annotation.
	if diff := cmp.Diff(`{"kind":"ClusterNetwork","apiVersion":"network.openshift.io/v1","metadata":{"name":"default"},`+
		`"network":"10.128.0.0/14","hostsubnetlength":9,"serviceNetwork":"172.30.0.0/16","pluginName":"redhat/openshift-ovs-networkpolicy",`+
		`"clusterNetworks":[{"CIDR":"10.128.0.0/14","hostSubnetLength":9}],"vxlanPort":4789}`, value); diff != "" {
		t.Error(diff)
	}
	edited := object()
	edited.Network, edited.ClusterNetworks[0].CIDR = "10.128.0.0/15", "10.128.0.0/15"
	edited.Annotations = map[string]string{AcceptedAnnotation: value}
	got, err := ActiveNetwork(edited)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(openShift(), got, comparePrefixes()); diff != "" {
		t.Error(diff)
	}
}

func TestActiveNetwork_none(t *testing.T) {
	annotated := func(value string) *networkv1.ClusterNetwork {
		o := object()
		o.Annotations = map[string]string{AcceptedAnnotation: value}
		return o
	}
	broken := object()
	broken.PluginName = "calico"
	for _, tc := range []struct {
		name   string
		object *networkv1.ClusterNetwork
		want   string // in the error
	}{
		{"not accepted yet", object(), "is not accepted by ovsdn-controller yet"},
		{"never valid", broken, `can't be used until this is corrected: pluginName: "calico" is not a mode`},
		{"no JSON", annotated("10.128.0.0/14"), "annotation ovsdn.io/accepted-configuration, which only ovsdn-controller may write, is invalid: "},
		{"empty", annotated(""), "is invalid"},
		{"another kind of JSON", annotated("[1]"), "is invalid"},
		{"nothing in it", annotated("{}"), "is invalid: pluginName: "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n, err := ActiveNetwork(tc.object)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, %v", n, err)
			}
		})
	}
}

// FuzzActiveNetwork: for any annotations, the active network is valid, and its annotation parses to the same network.
func FuzzActiveNetwork(f *testing.F) {
	value, err := openShift().Accepted()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(value, `[{"type":"Accepted","status":"True"}]`)
	f.Add("", "")
	f.Add(`{"clusterNetworks":[{"CIDR":"10.128.0.0/14","hostSubnetLength":4294967295}],"serviceNetwork":"172.30.0.0/16","pluginName":"subnet"}`, "{}")
	f.Fuzz(func(t *testing.T, accepted, conditions string) {
		o := object()
		o.Annotations = map[string]string{AcceptedAnnotation: accepted, ConditionsAnnotation: conditions}
		if list, err := Conditions(o); err != nil && list != nil {
			t.Errorf("conditions %v, %v", list, err)
		}
		n, err := ActiveNetwork(o)
		if err != nil {
			return
		}
		if o.Annotations[AcceptedAnnotation], err = n.Accepted(); err != nil {
			t.Fatal(err)
		}
		again, err := ActiveNetwork(o)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(n, again, comparePrefixes()); diff != "" {
			t.Error(diff)
		}
	})
}
