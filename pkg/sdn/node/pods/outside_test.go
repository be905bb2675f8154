package pods

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
)

// The node got another subnet while pods run. They have no network, which the pods and the node report, until they are deleted or the node gets the
// previous subnet back. New pods have addresses of the current subnet.
func TestRecover_changedSubnet(t *testing.T) {
	n := newNode(t)
	first, stop := n.start(t)
	var requests, checks []*cniserver.Request
	for _, name := range []string{"a", "b"} {
		req := n.addPod(name, newNetns(t))
		checks = append(checks, check(t, req, add(t, first, req)))
		requests = append(requests, req)
	}
	stop()
	previous := n.options.Subnets

	n.options.Subnets = []netip.Prefix{netip.MustParsePrefix("10.130.0.0/23")}
	second, stop := n.start(t)
	second.events.want(t, "pod a: AddressOutsideSubnet: pod default/a: address 10.128.2.2 is outside of the node's current subnet 10.130.0.0/23 (HostSubnet node1), ", "pod b: AddressOutsideSubnet: ")
	wantOutside(t, second, "default/a, default/b")
	req := n.addPod("c", newNetns(t))
	checkNew := check(t, req, add(t, second, req))
	if err := second.Check(t.Context(), checkNew); err != nil {
		t.Errorf("CHECK of a new pod: %v", err)
	}
	for range 2 { // periodic
		if err := second.reconcile(t.Context(), allValid); err != nil {
			t.Fatal(err)
		}
	}
	if err := second.Repair(t.Context(), sandbox.Attachment{Sandbox: requests[0].ContainerID, IfName: "eth0"}.HostVeth()); err != nil {
		t.Error(err)
	}
	if err := second.Check(t.Context(), checks[0]); code(err) != ErrAttachmentChanged {
		t.Errorf("CHECK of a pod outside of the subnet: got %v, want an error", err)
	}
	for _, f := range n.flows() {
		if strings.Contains(f, "10.128.2.") {
			t.Errorf("got flow %s of a pod outside of the node's subnet, want none", f)
		}
	}
	second.events.want(t, "pod a: AddressOutsideSubnet: ", "pod b: AddressOutsideSubnet: ")
	del(t, second, requests[1])
	wantOutside(t, second, "default/a")
	del(t, second, req)
	stop()

	n.options.Subnets = previous
	third, _ := n.start(t)
	if err := third.Outside(); err != nil {
		t.Errorf("got %v with the previous subnet, want no error", err)
	}
	awaitCheck(t, third, checks[0])
	del(t, third, requests[0])
	n.wantClean(t)
}

func wantOutside(t *testing.T, a *agent, names string) {
	t.Helper()
	if err := a.Outside(); err == nil || !strings.Contains(err.Error(), "no network: "+names+"; delete these pods") {
		t.Errorf("got %v, want an error that names %s", err, names)
	}
}
