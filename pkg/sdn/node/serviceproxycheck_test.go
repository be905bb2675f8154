package node

import (
	"errors"
	"strings"
	"testing"

	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
)

// kube-proxy's rules have one Event when they appear, and the condition has their effect until they are deleted.
func TestKubeProxyCheck(t *testing.T) {
	var place string
	var readErr error
	var events []string
	c := newKubeProxyCheck(func() (string, error) { return place, readErr }, func(reason string, err error) { events = append(events, reason+" "+err.Error()) })
	const nftables, iptables = "table ip kube-proxy of nftables", "chain KUBE-SERVICES of iptables"
	for _, step := range []struct {
		name, place string
		err         error
		events      int
		effect      bool
	}{
		{name: "no rules"},
		{name: "rules", place: nftables, events: 1, effect: true},
		{name: "the same rules", place: nftables, events: 1, effect: true},
		{name: "not read", err: errors.New("netlink"), events: 1, effect: true},
		{name: "read again", place: nftables, events: 1, effect: true},
		{name: "other rules", place: iptables, events: 2, effect: true},
		{name: "deleted", events: 2},
		{name: "rules again", place: iptables, events: 3, effect: true},
	} {
		place, readErr = step.place, step.err
		c.check(t.Context())
		if len(events) != step.events || (c.condition() != "") != step.effect {
			t.Fatalf("%s: got effect %q and Events %q, want an effect: %t, and %d Events", step.name, c.condition(), events, step.effect, step.events)
		}
		if step.place == "" {
			continue
		}
		if got := events[len(events)-1]; !strings.HasPrefix(got, eventreason.KubeProxyRules+" ") || !strings.Contains(got, step.place) {
			t.Errorf("%s: got Event %q, want %s with %q", step.name, got, eventreason.KubeProxyRules, step.place)
		}
	}
	if got := (*problemCheck)(nil).condition(); got != "" {
		t.Errorf("got effect %q where kube-proxy balances services, want none", got)
	}
}
