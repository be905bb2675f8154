package hostports

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/listeners"
)

func TestAdd_sharedPort(t *testing.T) {
	n := newNode(t)
	n.mustAdd(t, "s1", "a", tcp("192.0.2.1", 8080))
	n.mustAdd(t, "s2", "b", tcp("127.0.0.1", 8080))
	n.mustAdd(t, "s3", "c", udp("192.0.2.1", 8080))
	n.mustAdd(t, "s4", "d", tcp("", 8081))
	n.mustAdd(t, "s5", "without", []Mapping{}...)
	n.wantRules(t, "s1 s2 s3 s4")
	want := Target{netip.MustParseAddr("10.128.2.5"), protocolTCP, 8080, 80}
	if got := n.ports.Targets(); len(got) != 4 || got[0] != want || n.synced != 4 {
		t.Errorf("got targets %v and %d updates of the firewall, want 4 of each, the first %v", got, n.synced, want)
	}
	if err := n.Check(testContext(t), request(t, cniserver.CommandCheck, "s1", "a")); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	for i, pod := range []string{"a", "b", "c", "d"} {
		n.mustDel(t, "s"+string(rune('1'+i)), pod)
	}
	n.wantRules(t, "")
	if got := n.ports.Targets(); got != nil {
		t.Errorf("after DEL: got targets %v, want none", got)
	}
}

func TestAdd_taken(t *testing.T) {
	for name, tc := range map[string]struct{ have, want Mapping }{
		"same":                    {tcp("", 8080), tcp("", 8080)},
		"all addresses, then one": {tcp("", 8080), tcp("192.0.2.1", 8080)},
		"one, then all":           {udp("192.0.2.1", 53), udp("0.0.0.0", 53)},
		"same address":            {udp("192.0.2.1", 53), udp("192.0.2.1", 53)},
	} {
		n := newNode(t)
		n.mustAdd(t, "s1", "holder", tcp("", 1), tc.have)
		err := n.add(t, "s2", "late", tc.want)
		t.Log(name, err)
		wantCNIError(t, err, ErrHostPortTaken, "host port "+tc.want.String()+" is taken by pod default/holder")
		n.wantRules(t, "s1")
		if n.pods.known()[Attachment{"s2", "eth0"}] {
			t.Errorf("%s: the refused pod was attached", name)
		}
		if len(n.events) != 1 || !strings.HasPrefix(n.events[0], "default/late: "+eventreason.NetworkAttachFailed+": ") {
			t.Errorf("%s: got Events %q, want one on the pod", name, n.events)
		}
		n.mustDel(t, "s1", "holder")
		n.mustAdd(t, "s2", "late", tc.want)
	}
}

func TestAdd_takenByTheHost(t *testing.T) {
	n := newNode(t)
	n.listening = []listeners.Listener{{Addr: netip.MustParseAddr("127.0.0.1"), Port: 9000, UID: 0}}
	n.declared = map[string]string{"30080/TCP": "Service tenant/web", "192.0.2.1:443/TCP": "pod kube-system/proxy in the host's network"}
	wantCNIError(t, n.add(t, "s1", "a", tcp("", 9000)), ErrHostPortTaken, "9000/TCP is taken by a process of the host's user 0, on 127.0.0.1", "sport = :9000")
	wantCNIError(t, n.add(t, "s1", "a", tcp("", 30080)), ErrHostPortTaken, "30080/TCP is taken by Service tenant/web")
	wantCNIError(t, n.add(t, "s1", "a", tcp("192.0.2.1", 443)), ErrHostPortTaken, "192.0.2.1:443/TCP is taken by pod kube-system/proxy in the host's network")
	n.wantRules(t, "")
	n.mustAdd(t, "s1", "a", tcp("192.0.2.1", 9000))
}

// Ports of programs that do not run at the moment are taken, too.
func TestAdd_reserved(t *testing.T) {
	n := newNode(t)
	for _, port := range []int{22, 2379, 2380, 6443, 10250, 10256, 10257, 10259, 9410, 9411, 9446, 9447} {
		wantCNIError(t, n.add(t, "s1", "a", tcp("192.0.2.1", port)), ErrHostPortTaken, "is taken by the node")
	}
	n.mustAdd(t, "s1", "a", udp("", 6443))
}

func TestAdd_invalid(t *testing.T) {
	for _, tc := range []struct {
		mapping Mapping
		part    string
	}{
		{tcp("", 0), "0/TCP: it is not between 1 and 65535"},
		{tcp("", -1), "-1/TCP: it is not between"},
		{tcp("", 65536), "65536/TCP: it is not between"},
		{Mapping{"", 80, 0, "tcp"}, "the container's port 0 is not between"},
		{Mapping{"", 80, 80, "icmp"}, "80/ICMP: the protocol is neither"},
		{tcp("node", 80), `hostIP "node" is not an address`},
		{tcp("fe80::1%eth0", 80), `hostIP "fe80::1%eth0" is not an address`},
		{udp("", 4789), "4789/UDP is the port of the tunnels between nodes"},
	} {
		n := newNode(t)
		wantCNIError(t, n.add(t, "s1", "a", tc.mapping), types.ErrInvalidNetworkConfig, tc.part)
		n.wantRules(t, "")
	}
	n := newNode(t)
	n.mustAdd(t, "s1", "a", tcp("", 4789), Mapping{"", 53, 53, "UDP"}, Mapping{"", 54, 53, ""})
	want := []Mapping{tcp("", 4789), {"", 53, 53, "udp"}, {"", 54, 53, "tcp"}}
	if got := n.ports.get(Attachment{"s1", "eth0"}).record.Mappings; !slices.Equal(got, want) {
		t.Errorf("mappings: got %v, want %v", got, want)
	}
}

// The pod's previous sandbox, and sandboxes that do not exist any longer, hold no port.
func TestAdd_previousSandbox(t *testing.T) {
	n := newNode(t)
	n.mustAdd(t, "s1", "a", tcp("", 8080))
	n.mustAdd(t, "s2", "a", tcp("", 8080))
	n.wantRules(t, "s2")
	n.mustDel(t, "s1", "a", tcp("", 8080)) // late
	n.wantRules(t, "s2")

	if err := n.pods.Del(testContext(t), request(t, cniserver.CommandDel, "s2", "a")); err != nil { // as GC of the pod manager
		t.Fatal(err)
	}
	n.mustAdd(t, "s3", "b", tcp("", 8080))
	n.wantRules(t, "s3")
}

func TestAdd_failureIsReverted(t *testing.T) {
	n := newNode(t)
	n.plugin.fails = errors.New("no rules today")
	if err := n.add(t, "s1", "a", tcp("", 8080)); !errors.Is(err, n.plugin.fails) {
		t.Errorf("got error %v, want that of portmap", err)
	}
	n.wantRules(t, "")
	if len(n.pods.known()) != 0 || len(n.ports.Targets()) != 0 {
		t.Errorf("got attached pods %v and targets %v, want none", n.pods.known(), n.ports.Targets())
	}
	n.plugin.fails = nil
	n.mustAdd(t, "s2", "b", tcp("", 8080))
}

func TestReconcile_flush(t *testing.T) {
	n := newNode(t)
	n.mustAdd(t, "s1", "a", tcp("", 8080))
	n.mustAdd(t, "s2", "b", udp("", 53))
	n.plugin.flush()
	wantCNIError(t, n.Check(testContext(t), request(t, cniserver.CommandCheck, "s1", "a")), ErrHostPortsMissing, "host ports of pod default/a are missing")
	n.restart(t) // the agent knows them by the stored records
	restored, err := n.ports.restore(testContext(t))
	if diff := cmp.Diff([]string{"default/a", "default/b"}, restored); diff != "" || err != nil {
		t.Errorf("restored (-want +got), error %v:\n%s", err, diff)
	}
	n.wantRules(t, "s1 s2")
	adds := n.plugin.adds
	if restored, err := n.ports.restore(testContext(t)); len(restored) != 0 || err != nil || n.plugin.adds != adds {
		t.Errorf("again: got %v (%v) and %d more ADDs, want none", restored, err, n.plugin.adds-adds)
	}
	wantCNIError(t, n.add(t, "s3", "c", udp("", 53)), ErrHostPortTaken, "default/b")
	if !n.routed {
		t.Error("route_localnet is off with host ports")
	}
	n.mustDel(t, "s1", "a")
	n.mustDel(t, "s2", "b")
	if _, err := n.ports.restore(testContext(t)); err != nil || n.routed {
		t.Errorf("without host ports: got error %v, route_localnet %t, want it off", err, n.routed)
	}
}

// A program that empties /run deletes the records: they are restored before a flush can happen.
func TestReconcile_deletedRecords(t *testing.T) {
	n := newNode(t)
	n.mustAdd(t, "s1", "a", tcp("", 8080))
	if err := os.RemoveAll(n.dir); err != nil {
		t.Fatal(err)
	}
	if restored, err := n.ports.restore(testContext(t)); err != nil || len(restored) != 0 {
		t.Errorf("restored rules of %q (%v), want none", restored, err)
	}
	n.wantRules(t, "s1")
}

// GC deletes the rules of sandboxes that the pod manager has detached.
func TestGC(t *testing.T) {
	n := newNode(t)
	n.mustAdd(t, "s1", "a", tcp("", 8080))
	n.mustAdd(t, "s2", "b", tcp("", 8081))
	if err := n.pods.Del(testContext(t), request(t, cniserver.CommandDel, "s1", "a")); err != nil {
		t.Fatal(err)
	}
	if err := n.GC(testContext(t), request(t, cniserver.CommandGC, "", "")); err != nil {
		t.Fatal(err)
	}
	n.wantRules(t, "s2")
}

// DEL deletes the file of a record that could not be read, so that no further start of the agent reports it.
func TestDel_damagedRecord(t *testing.T) {
	n := newNode(t)
	n.mustAdd(t, "s1", "a", tcp("", 8080))
	if err := os.WriteFile(records(n.dir).path(Attachment{"s1", "eth0"}), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	ports, err := New(n.ports.Options)
	if err == nil {
		t.Error("got no error of the damaged record")
	}
	n.pods.beforeRelease, n.Handler = ports.Release, ports.Handler(n.pods)
	n.mustDel(t, "s1", "a", tcp("", 8080))
	n.wantRules(t, "")
}

func TestRemoveAll(t *testing.T) {
	n := newNode(t)
	n.mustAdd(t, "s1", "a", tcp("", 8080))
	if err := RemoveAll(testContext(t), n.plugin, n.dir); err != nil {
		t.Fatal(err)
	}
	n.wantRules(t, "")
}

// Of pods that ask for one host port at the same time, one gets it.
func TestAdd_concurrent(t *testing.T) {
	n := newNode(t)
	var group sync.WaitGroup
	errs := make([]error, 8)
	ctx := testContext(t)
	for i := range errs {
		req := request(t, cniserver.CommandAdd, fmt.Sprintf("s%d", i), fmt.Sprintf("p%d", i), tcp("", 8080))
		group.Go(func() { _, errs[i] = n.Add(ctx, req) })
	}
	group.Wait()
	added := 0
	for _, err := range errs {
		if err == nil {
			added++
		} else {
			wantCNIError(t, err, ErrHostPortTaken, "is taken by pod default/p")
		}
	}
	if added != 1 {
		t.Errorf("%d pods got the host port, want 1", added)
	}
}

// Mappings of IPv6 addresses, which portmap ignores for pods of IPv4, conflict with no socket of IPv4.
func TestAdd_ipv6(t *testing.T) {
	n := newNode(t)
	n.listening = []listeners.Listener{{Addr: netip.IPv4Unspecified(), Port: 8080, UID: 0}}
	n.mustAdd(t, "s1", "a", tcp("2001:db8::1", 8080), tcp("::", 8080))
	if got := n.ports.Targets(); got != nil {
		t.Errorf("got targets %v, want none", got)
	}
}
