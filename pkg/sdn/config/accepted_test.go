package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	networkv1 "github.com/openshift/api/network/v1"
)

func TestInForce(t *testing.T) {
	value, err := openShift().Accepted()
	if err != nil {
		t.Fatal(err)
	}
	// People read it, and apply it.
	if diff := cmp.Diff(`{"kind":"ClusterNetwork","apiVersion":"network.openshift.io/v1","metadata":{"name":"default"},`+
		`"network":"10.128.0.0/14","hostsubnetlength":9,"serviceNetwork":"172.30.0.0/16","pluginName":"redhat/openshift-ovs-networkpolicy",`+
		`"clusterNetworks":[{"CIDR":"10.128.0.0/14","hostSubnetLength":9}],"vxlanPort":4789}`, value); diff != "" {
		t.Error(diff)
	}
	edited := object()
	edited.Network, edited.ClusterNetworks[0].CIDR = "10.128.0.0/15", "10.128.0.0/15"
	edited.Annotations = map[string]string{AcceptedAnnotation: value}
	got, err := InForce(edited)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(openShift(), got, comparePrefixes()); diff != "" {
		t.Error(diff)
	}
}

func TestNothingInForce(t *testing.T) {
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
		{"not judged yet", object(), "is not accepted by ovsdn-controller yet"},
		{"never right", broken, `can't be used until this is corrected: pluginName: "calico" is no mode`},
		{"no JSON", annotated("10.128.0.0/14"), "annotation ovsdn.io/accepted-configuration, which is ovsdn-controller's to write, can't be read: "},
		{"empty", annotated(""), "can't be read"},
		{"another kind of JSON", annotated("[1]"), "can't be read"},
		{"nothing in it", annotated("{}"), "can't be read: pluginName: "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n, err := InForce(tc.object)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, %v", n, err)
			}
		})
	}
}

// FuzzInForce: whatever is in the annotations, what is in force is a network that can't be wrong, and writes itself.
func FuzzInForce(f *testing.F) {
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
		n, err := InForce(o)
		if err != nil {
			return
		}
		if o.Annotations[AcceptedAnnotation], err = n.Accepted(); err != nil {
			t.Fatal(err)
		}
		again, err := InForce(o)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(n, again, comparePrefixes()); diff != "" {
			t.Error(diff)
		}
	})
}
