package node

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/test/apitest"
	"github.com/ovsdn/ovsdn/test/tier"
)

func TestCheckServiceNetwork(t *testing.T) {
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
		if err := checkServiceNetwork(clusterIPs(service), network); (err != nil) != tc.wrong {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestReportServiceNetwork(t *testing.T) {
	events := record.NewFakeRecorder(10)
	a := &agent{reporter: &reporter{recorder: events, node: &corev1.ObjectReference{}}}
	for i, step := range []struct{ fault, want string }{
		{"", ""}, {"a", "a"}, {"a", ""}, {"b", "b"}, {"", ""}, {"b", "b"},
	} {
		var fault error
		if step.fault != "" {
			fault = errors.New(step.fault)
		}
		a.reportServiceNetwork(t.Context(), fault)
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
func TestWatchServiceNetwork_mismatch(t *testing.T) {
	tier.Parallel(t)
	kube, ours := apitest.Clients(t, apitest.Start(t))
	defer apitest.Disconnect(kube, ours)
	events := record.NewFakeRecorder(10)
	a := &agent{kube: kube, network: ours, Config: Config{NodeName: "node1"}, reporter: &reporter{recorder: events, node: &corev1.ObjectReference{}}}
	ctx, cancel := context.WithCancel(t.Context())
	c := a.newCaches()
	defer c.Shutdown()
	defer cancel()
	must(t, a.watchServiceNetwork(ctx, c, &config.Network{ServiceNetwork: netip.MustParsePrefix("10.96.0.0/12")}))
	c.Start(ctx)
	got := <-events.Events
	for _, want := range []string{"ServiceNetworkMismatch", "default/kubernetes", "172.30.0.1", "10.96.0.0/12", "serviceNetwork", "--service-cluster-ip-range"} {
		if !strings.Contains(got, want) {
			t.Errorf("got Event %q, want %q in it", got, want)
		}
	}
}
