package lab

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// Kubelet gives pods the address of the service, which is in the service network, however small.
func TestDNSAddr(t *testing.T) {
	for network, want := range map[string]string{"172.30.0.0/16": "172.30.0.10", "10.96.0.0/12": "10.96.0.10", "192.168.3.240/28": "192.168.3.250"} {
		shape := Shape{ServiceNetwork: netip.MustParsePrefix(network)}
		got := shape.DNSAddr()
		if got.String() != want || !shape.ServiceNetwork.Contains(got) {
			t.Errorf("in %s: got %s, want %s", network, got, want)
		}
		if line := "\nclusterDNS: [" + want + "]\n"; !strings.Contains(kubeletYAML(got), line) {
			t.Errorf("kubelet's configuration does not contain %q", line)
		}
		if line := "\n  clusterIP: " + want + "\n"; !strings.Contains(dnsManifest(shape), line) {
			t.Errorf("the manifest does not contain %q", line)
		}
	}
}

func TestCorefile(t *testing.T) {
	shape := DefaultShape()
	if text := corefile(shape); strings.Contains(text, "forward") || !strings.HasPrefix(text, "cluster.local:53 ") {
		t.Errorf("names outside of the cluster are not refused:\n%s", text)
	}
	shape.DNSForward = "192.0.2.1:5353"
	if text := corefile(shape); !strings.Contains(text, "\n.:53 {\n    errors\n    forward . 192.0.2.1:5353\n") {
		t.Errorf("names outside of the cluster are not forwarded:\n%s", text)
	}
}

// The manifest is YAML whatever its values are, and its pod reads the Corefile.
func TestDNSManifest(t *testing.T) {
	shape := DefaultShape()
	shape.DNSForward = "192.0.2.1:5353"
	documents := strings.Split(dnsManifest(shape), "---\n")
	var config corev1.ConfigMap
	var deployment appsv1.Deployment
	var kinds []string
	for _, document := range documents {
		var object struct{ Kind string }
		if err := yaml.Unmarshal([]byte(document), &object); err != nil {
			t.Fatalf("%v:\n%s", err, document)
		}
		kinds = append(kinds, object.Kind)
		var err error
		switch object.Kind {
		case "ConfigMap":
			err = yaml.UnmarshalStrict([]byte(document), &config)
		case "Deployment":
			err = yaml.UnmarshalStrict([]byte(document), &deployment)
		}
		if err != nil {
			t.Errorf("%s: %v", object.Kind, err)
		}
	}
	want := []string{"Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "ConfigMap", "Service", "Deployment"}
	if diff := cmp.Diff(want, kinds); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"Corefile": corefile(shape)}, config.Data); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
	pod := deployment.Spec.Template.Spec
	if len(pod.Containers) != 1 || pod.Containers[0].Image != "localhost/coredns:lab" || pod.HostNetwork {
		t.Errorf("got pod %+v, want one container of localhost/coredns:lab in the pod network", pod)
	}
}
