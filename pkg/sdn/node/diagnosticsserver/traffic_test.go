package diagnosticsserver

import (
	"context"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
)

// portSwitch has counters of ports.
type portSwitch struct {
	Switch

	ports func(context.Context) ([]openflow.PortStats, error)
}

func (s *portSwitch) PortStats(ctx context.Context) ([]openflow.PortStats, error) {
	return s.ports(ctx)
}

// The switch receives what pods send. Ports of no pod, a pod without a port, one without a name and one whose device can't be read are left out, and no traffic
// is an empty list.
func TestTraffic(t *testing.T) {
	c := newClient(t)
	sw := &portSwitch{ports: func(context.Context) ([]openflow.PortStats, error) {
		return []openflow.PortStats{
			{Port: 6, SentPackets: openflow.NoCounter, SentBytes: openflow.NoCounter, ReceivedPackets: openflow.NoCounter, ReceivedBytes: openflow.NoCounter},
			{Port: 1, SentPackets: 99}, {Port: openflow.PortLocal, SentPackets: 98}, {Port: 5, SentPackets: 97}, {
				Port: 3, Seconds: 60, Nanoseconds: 500_000_000, ReceivedPackets: 1, SentPackets: 2, ReceivedBytes: 100, SentBytes: 200, ReceivedDropped: 7, SentDropped: openflow.NoCounter,
			},
		}, nil
	}}
	n := newNetwork(written(t), sw)
	nameless, waiting, unread := webPod(), webPod(), webPod()
	nameless.Name, nameless.OFPort, waiting.OFPort, unread.OFPort = "", 5, -1, 6
	n.Pods = func() []sandbox.Pod { return []sandbox.Pod{nameless, webPod(), waiting, unread} }
	c.SetNetwork(n)
	var got diagnostics.NodeTraffic
	c.get(t, diagnostics.TrafficPath, &got)
	want := diagnostics.NodeTraffic{
		TypeMeta: metav1.TypeMeta{Kind: "NodeTraffic", APIVersion: "diagnostics.ovsdn.io/v1alpha1"}, ObjectMeta: metav1.ObjectMeta{Name: "node1"},
		Pods: []diagnostics.PodTraffic{{
			Namespace: "default", Name: "web", OFPort: 3, Age: metav1.Duration{Duration: 60500 * time.Millisecond},
			In: diagnostics.Traffic{Bytes: 200, Packets: 2}, Out: diagnostics.Traffic{Bytes: 100, Packets: 1, Dropped: 7},
		}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("traffic (-want +got):\n%s", diff)
	}
}

func TestTraffic_ofSwitch(t *testing.T) {
	n := newNode(t)
	n.sw.VSCtl(t, "add-port", "br0", "p3", "--", "set", "interface", "p3", "type=internal", "ofport_request=3")
	var got diagnostics.NodeTraffic
	n.get(t, diagnostics.TrafficPath, &got)
	if len(got.Pods) != 1 || got.Pods[0].Name != "web" || got.Pods[0].Age.Duration <= 0 {
		t.Errorf("got %+v, want the pod with the age of its port", got.Pods)
	}
	n.sw.StopVSwitchd(t)
	if w := n.do(t.Context(), http.MethodGet, diagnostics.TrafficPath); w.Code != http.StatusServiceUnavailable {
		t.Errorf("without vswitchd: got %d: %s, want 503", w.Code, w.Body)
	}
}

func TestTraffic_oneRequestAtATime(t *testing.T) {
	c := newClient(t)
	asked, release := make(chan struct{}), make(chan struct{})
	var isLater atomic.Bool
	c.SetNetwork(newNetwork(written(t), &portSwitch{ports: func(context.Context) ([]openflow.PortStats, error) {
		if isLater.CompareAndSwap(false, true) { // others do not wait
			close(asked)
			<-release
		}
		return nil, nil
	}}))
	first := make(chan int)
	go func() { first <- c.do(t.Context(), http.MethodGet, diagnostics.TrafficPath).Code }()
	<-asked
	if w := c.do(t.Context(), http.MethodGet, diagnostics.TrafficPath); w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") == "" {
		t.Errorf("the second request: got %d, Retry-After %q, want 429 with a time", w.Code, w.Header().Get("Retry-After"))
	}
	close(release)
	if code := <-first; code != http.StatusOK {
		t.Errorf("the first request: got %d, want 200", code)
	}
	if w := c.do(t.Context(), http.MethodGet, diagnostics.TrafficPath); w.Code != http.StatusOK {
		t.Errorf("after the first request: got %d: %s, want 200", w.Code, w.Body)
	}
}
