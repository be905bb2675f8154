package pods

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/podinterface"
	"github.com/ovsdn/ovsdn/test/tier"
)

// A port number depends on the address only: in a subnet with one address, all pods get the same number, one after the other.
func TestOFPort_reused(t *testing.T) {
	tier.Parallel(t)
	n, _ := newOVSNode(t)
	n.options.Subnets = []netip.Prefix{netip.MustParsePrefix("10.128.2.0/30")}
	a, _ := n.start(t)
	for i := range 20 {
		req := n.addPod(fmt.Sprintf("pod%d", i), newNetns(t))
		checkReq := check(t, req, add(t, a, req))
		if number := a.Pods()[0].OFPort; number != podinterface.FirstOFPort+2 {
			t.Errorf("pod %d: got OpenFlow port number %d, want %d", i, number, podinterface.FirstOFPort+2)
		}
		if err := a.Check(t.Context(), checkReq); err != nil {
			t.Error(err)
		}
		del(t, a, req)
	}
	n.wantClean(t)
}

// hiddenPort omits a port from the list, like a port that is added after the list was read.
type hiddenPort struct {
	Switch
	name string
}

func (h hiddenPort) ListPorts(ctx context.Context) ([]ovs.Port, error) {
	ports, err := h.Switch.ListPorts(ctx)
	return slices.DeleteFunc(ports, func(p ovs.Port) bool { return p.Name == h.name }), err
}

// A port of another program has the pod's number: the pod gets another number, and the other port no flows.
func TestOFPort_inUse(t *testing.T) {
	tier.Parallel(t)
	for _, late := range []bool{false, true} {
		t.Run(fmt.Sprintf("added after the list %t", late), func(t *testing.T) {
			n, _ := newOVSNode(t)
			if _, err := n.bridge.AddPort(t.Context(), ovs.Port{Name: "foreign", Type: "internal", OFPort: podinterface.FirstOFPort + 2}); err != nil {
				t.Fatal(err)
			}
			a, _ := n.start(t)
			bridge := a.bridge
			if late {
				a.bridge = hiddenPort{bridge, "foreign"}
			}
			req := n.addPod("web", newNetns(t))
			checkReq := check(t, req, add(t, a, req))
			a.bridge = bridge
			number := a.Pods()[0].OFPort
			if number <= 0 || number >= podinterface.FirstOFPort {
				t.Errorf("got OpenFlow port number %d, want one outside the range of pods, below %d", number, podinterface.FirstOFPort)
			}
			if err := a.Check(t.Context(), checkReq); err != nil {
				t.Error(err)
			}
			for _, flow := range n.flows() {
				if strings.Contains(flow, fmt.Sprint(podinterface.FirstOFPort+2)) || strings.Contains(flow, fmt.Sprintf("%#x", podinterface.FirstOFPort+2)) {
					t.Errorf("got a flow for the port of another program: %s", flow)
				}
			}
			del(t, a, req)
			n.wantClean(t)
		})
	}
}
