package networkpolicy

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/ovsdn/ovsdn/test/tier"
)

// The pod is isolated for ingress by its policy, and has a name, as its peer and nodes have.
func TestIsolatorsAndNames(t *testing.T) {
	tier.Parallel(t)
	f := newFixture(t, addPolicyWithPeer)
	f.attachPod(podObject("a", "web", "2", "", labels("web")), "s1", 3, "10.128.0.5")
	pod := netip.MustParseAddr("10.128.0.5")
	names, more := f.Isolators(pod, false, 8)
	if len(names) != 1 || more != 0 || !strings.HasPrefix(names[0], "a/") {
		t.Fatalf("got %q and %d more, want the policy of namespace a", names, more)
	}
	if again, _ := f.Isolators(pod, false, 0); len(again) != 0 {
		t.Errorf("got %q, want none of at most 0", again)
	}
	if egress, _ := f.Isolators(pod, true, 8); len(egress) != 0 {
		t.Errorf("got %q for egress, want none", egress)
	}
	if other, _ := f.Isolators(netip.MustParseAddr("192.0.2.77"), false, 8); len(other) != 0 {
		t.Errorf("got %q for an unknown address, want none", other)
	}
	if namespace, name, ok := f.NameOf(pod); namespace != "a" || name != "web" || !ok {
		t.Errorf("got %s/%s, %v, want a/web", namespace, name, ok)
	}
	if _, name, ok := f.NameOf(netip.MustParseAddr("192.0.2.77")); ok {
		t.Errorf("got %s for an unknown address", name)
	}
}
