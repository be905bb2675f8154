package servicenetwork

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/caches"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/apitest"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/tier"
)

func TestMain(m *testing.M) { await.VerifyTestMain(m) }

func TestCompare(t *testing.T) {
	network := netip.MustParsePrefix("172.30.0.0/16")
	for name, tc := range map[string]struct {
		addresses []string
		wrong     bool
	}{
		"inside":                  {[]string{"172.30.0.1"}, false},
		"outside":                 {[]string{"10.96.0.1"}, true},
		"IPv6 first":              {[]string{"fd00::1", "172.30.0.1"}, false},
		"IPv6 alone":              {[]string{"fd00::1"}, true},
		"headless":                {[]string{corev1.ClusterIPNone}, false},
		"without an address yet":  {nil, false},
		"another family is right": {[]string{"172.30.255.255", "fd00::1"}, false},
	} {
		service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: apiService}, Spec: corev1.ServiceSpec{ClusterIPs: tc.addresses}}
		if err := compare(clusterIPs(service), network); (err != nil) != tc.wrong {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// warn records Events about the node.
func warn(events *record.FakeRecorder) func(string, error) {
	return func(reason string, err error) {
		events.Event(&corev1.ObjectReference{}, corev1.EventTypeWarning, reason, err.Error())
	}
}

func TestReport(t *testing.T) {
	events := record.NewFakeRecorder(10)
	c := New(warn(events))
	for i, step := range []struct{ fault, want string }{
		{"", ""}, {"a", "a"}, {"a", ""}, {"b", "b"}, {"", ""}, {"b", "b"},
	} {
		var fault error
		if step.fault != "" {
			fault = errors.New(step.fault)
		}
		c.report(t.Context(), fault)
		got := ""
		if len(events.Events) > 0 {
			got = strings.TrimPrefix(<-events.Events, "Warning ServiceNetworkMismatch ")
		}
		if got != step.want {
			t.Errorf("step %d: got %q, want %q", i, got, step.want)
		}
	}
}

// The API server creates the service with the first address of its range.
func TestWatch_mismatch(t *testing.T) {
	tier.Parallel(t)
	kube, ours := apitest.Clients(t, apitest.Start(t))
	defer apitest.Disconnect(kube, ours)
	events := record.NewFakeRecorder(10)
	ctx, cancel := context.WithCancel(t.Context())
	c := caches.New(caches.Options{NodeName: "node1", Kube: kube, Network: ours})
	defer c.Shutdown()
	defer cancel()
	if err := c.WatchServices(ctx, pipeline.Node{}); err != nil {
		t.Fatal(err)
	}
	if err := New(warn(events)).Watch(ctx, c.Services.Core().V1().Services().Informer(), netip.MustParsePrefix("10.96.0.0/12")); err != nil {
		t.Fatal(err)
	}
	got := <-events.Events
	for _, want := range []string{"ServiceNetworkMismatch", "default/kubernetes", "172.30.0.1", "10.96.0.0/12", "serviceNetwork", "--service-cluster-ip-range"} {
		if !strings.Contains(got, want) {
			t.Errorf("got Event %q, want %q in it", got, want)
		}
	}
}
