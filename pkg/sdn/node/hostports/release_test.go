package hostports

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
)

// A pod remains attached, and retains its address, until its rules are deleted.
func TestDel_undeletedRules(t *testing.T) {
	n := newNode(t)
	n.mustAdd(t, "s1", "a", tcp("", 8080))
	n.plugin.undeletable = errors.New("no deletion today")
	if err := n.Del(testContext(t), request(t, cniserver.CommandDel, "s1", "a")); !errors.Is(err, n.plugin.undeletable) {
		t.Errorf("DEL: got error %v, want that of portmap", err)
	}
	n.plugin.fails = errors.New("no rules today")
	if err := n.add(t, "s2", "b", tcp("", 8081)); !errors.Is(err, n.plugin.undeletable) || !errors.Is(err, n.plugin.fails) {
		t.Errorf("ADD: got error %v, want both of portmap", err)
	}
	if got := n.pods.known(); len(got) != 2 {
		t.Errorf("attached sandboxes: got %v, want both", got)
	}
	n.plugin.undeletable = nil
	n.mustDel(t, "s1", "a")
	n.mustDel(t, "s2", "b")
	n.wantRules(t, "")
	if got := n.pods.known(); len(got) != 0 {
		t.Errorf("attached sandboxes: got %v, want none", got)
	}
}

// An ADD that ends while it waits for the rules does not hold its host ports for ever.
func TestAdd_canceled(t *testing.T) {
	n := newNode(t)
	ctx, cancel := context.WithCancel(testContext(t))
	var c *claim
	n.pods.attaching = func(a Attachment) {
		c = n.ports.get(a)
		c.changing <- struct{}{}
		cancel()
	}
	n.pods.beforeRelease = func(context.Context, Attachment) error { return errors.New("not released") }
	if _, err := n.Add(ctx, request(t, cniserver.CommandAdd, "s1", "a", tcp("", 8080))); !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v, want that of the context", err)
	}
	if n.ports.isAdding(c) {
		t.Error("ADD has ended, and its claim is that of an ADD in progress")
	}
	<-c.changing
	n.pods.attaching, n.pods.beforeRelease = nil, n.ports.Release
	n.mustDel(t, "s1", "a")
	n.mustAdd(t, "s2", "b", tcp("", 8080))
}

// The next sandbox of a pod takes the host ports of an ADD of the previous one that is still in progress, and which then fails.
func TestAdd_twoSandboxes(t *testing.T) {
	n := newNode(t)
	n.pods.attaching = func(Attachment) {
		n.pods.attaching = nil
		n.mustAdd(t, "s2", "a", tcp("", 8080))
	}
	wantCNIError(t, n.add(t, "s1", "a", tcp("", 8080)), types.ErrTryAgainLater, "s1 was deleted or replaced during ADD")
	n.wantRules(t, "s2")
	if got := n.pods.known(); len(got) != 1 {
		t.Errorf("attached sandboxes: got %v, want s2", got)
	}
}

// A DEL, or GC, during ADD leaves no rules to the released address.
func TestAdd_deletedDuringADD(t *testing.T) {
	n := newNode(t)
	n.pods.attaching = func(Attachment) { n.mustDel(t, "s1", "a") }
	wantCNIError(t, n.add(t, "s1", "a", tcp("", 8080)), types.ErrTryAgainLater, "s1 was deleted or replaced during ADD")
	n.wantRules(t, "")
}

// A pod that was attached after the list of attached pods retains its host ports.
func TestReleaseDetached_oldList(t *testing.T) {
	n := newNode(t)
	n.mustAdd(t, "s1", "a", tcp("", 8080))
	old := map[Attachment]bool{}
	n.ports.Attached = func() map[Attachment]bool {
		list := old
		old = n.pods.known()
		return list
	}
	if err := n.ports.releaseDetached(testContext(t)); err != nil {
		t.Fatal(err)
	}
	n.wantRules(t, "s1")
	old = map[Attachment]bool{}
	wantCNIError(t, n.add(t, "s2", "b", tcp("", 8080)), ErrHostPortTaken, "default/a")
	n.wantRules(t, "s1")
}

// While rules of one pod are written, requests of others do not wait.
func TestAdd_lockedPod(t *testing.T) {
	n := newNode(t)
	n.mustAdd(t, "s1", "a", tcp("", 8080))
	unlock, ok, err := n.ports.lock(testContext(t), n.ports.get(Attachment{"s1", "eth0"}))
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	defer unlock()
	n.mustAdd(t, "s2", "b", tcp("", 8081))
	n.mustDel(t, "s2", "b")
}

// A node that can't map host ports starts pods without them, and reports the cause once.
func TestBackend_unusable(t *testing.T) {
	n := newNode(t)
	n.plugin.unusable = errors.New("no packet filter")
	r := reconciler{Ports: n.ports}
	for range 3 {
		r.round(testContext(t))
	}
	if err := n.Status(testContext(t)); err != nil {
		t.Errorf("STATUS: got error %v, want none", err)
	}
	n.mustAdd(t, "s1", "a")
	searches := n.plugin.searches
	wantCNIError(t, n.add(t, "s2", "b", tcp("", 8080)), types.ErrTryAgainLater, "the node can't map host ports", "no packet filter")
	n.mustDel(t, "unknown", "c", tcp("", 8080))
	if n.plugin.searches != searches {
		t.Errorf("requests searched for a backend %d times, want the remembered result", n.plugin.searches-searches)
	}
	n.wantEvents(t, "node: "+eventreason.HostPortsFailed+": ", "default/b: "+eventreason.NetworkAttachFailed+": ")
	n.plugin.unusable = nil
	r.round(testContext(t))
	n.mustAdd(t, "s2", "b", tcp("", 8080))
}

// ordered is a plugin that records the order of its calls.
type ordered struct {
	Plugin
	calls *[]string
}

func (o ordered) Add(ctx context.Context, r record) error {
	*o.calls = append(*o.calls, "rules of "+r.Sandbox)
	return o.Plugin.Add(ctx, r)
}

// The firewall's rules precede the translation, without which they match nothing: a connection that was not masqueraded would remain so. UDP connections that
// were not translated are flushed after it, also when a flush of the firewall had deleted the rules.
func TestRules_order(t *testing.T) {
	n := newNode(t)
	var calls []string
	n.ports.Plugin = ordered{n.plugin, &calls}
	n.ports.SyncFirewall = func(context.Context) error { calls = append(calls, "firewall"); return nil }
	n.ports.flushNotMapped = func(r record, _ []netip.Addr) error { calls = append(calls, "flush of "+r.Sandbox); return nil }
	n.mustAdd(t, "s1", "a", udp("", 53))
	if diff := cmp.Diff([]string{"firewall", "rules of s1", "flush of s1"}, calls); diff != "" {
		t.Errorf("calls of ADD (-want +got):\n%s", diff)
	}
	n.mustAdd(t, "s2", "b", udp("", 54))
	n.plugin.flush()
	calls = nil
	if _, err := n.ports.restore(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"firewall", "rules of s1", "flush of s1", "rules of s2", "flush of s2"}, calls); diff != "" {
		t.Errorf("calls after a flush (-want +got):\n%s", diff)
	}
	calls = nil
	if _, err := n.ports.restore(testContext(t)); err != nil || calls != nil {
		t.Errorf("with all rules: got calls %q, error %v, want none", calls, err)
	}
}

// An agent without host ports, which may follow, does not protect the loopback.
func TestClose(t *testing.T) {
	n := newNode(t)
	n.mustAdd(t, "s1", "a", tcp("", 8080))
	if !n.routed {
		t.Error("route_localnet is off with host ports")
	}
	if err := n.ports.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := n.ports.restore(testContext(t)); err != nil || n.routed {
		t.Errorf("got error %v, route_localnet %t, want it off after Close", err, n.routed)
	}
}

// wantEvents checks that there is one Event with each prefix, and no other.
func (n *node) wantEvents(t *testing.T, prefixes ...string) {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	ok := len(n.events) == len(prefixes)
	for i := range min(len(n.events), len(prefixes)) {
		ok = ok && strings.HasPrefix(n.events[i], prefixes[i])
	}
	if !ok {
		t.Errorf("got Events %q, want %q", n.events, prefixes)
	}
}
