package config

import (
	"strings"
	"testing"

	networkv1 "github.com/openshift/api/network/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Messages repeat only the beginning of long values: they become Events, conditions and log lines.
func TestErrorsOfLongValues(t *testing.T) {
	const most = 1024 // bytes of an Event's message, of all faults of one object
	long := strings.Repeat("\u00e4", 128<<10)
	meta := func(annotation string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: strings.Repeat("n", 253), Annotations: map[string]string{annotation: long}}
	}
	for name, parse := range map[string]func() error{
		"Namespace": func() error {
			_, err := ParseLogDenied(map[string]string{LogDeniedAnnotation: long})
			return err
		},
		"HostSubnet": func() error {
			_, err := ParseHostSubnet(&networkv1.HostSubnet{ObjectMeta: meta(""), Host: long, HostIP: long, Subnet: long})
			return err
		},
		"NetNamespace": func() error {
			_, err := ParseNetNamespace(&networkv1.NetNamespace{ObjectMeta: meta(AssignedVNIDAnnotation), NetName: long, NetID: 5})
			return err
		},
		"change of a NetNamespace": func() error {
			_, err := ParseChange("join:" + long)
			return err
		},
		"ClusterNetwork": func() error {
			_, err := ParseNetwork(&networkv1.ClusterNetwork{ObjectMeta: meta(RoutableMTUAnnotation), Network: long, ServiceNetwork: long, PluginName: long})
			return err
		},
		"ClusterNetwork that is not masqueraded": func() error {
			_, err := ParseNetwork(&networkv1.ClusterNetwork{ObjectMeta: meta(NonMasqueradeCIDRsAnnotation), Network: long, ServiceNetwork: long, PluginName: long})
			return err
		},
	} {
		err := parse()
		if err == nil {
			t.Errorf("%s: got no error for values of %d bytes", name, len(long))
			continue
		}
		if n := len(err.Error()); n > most {
			t.Errorf("%s: got an error of %d bytes, want at most %d: %s…", name, n, most, err.Error()[:200])
		}
	}
}
