package hostnet

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

func TestFaultIsToldWhenItLasts(t *testing.T) {
	const long = 5 * time.Second
	first, second := errors.New("first"), errors.New("second")
	type sync struct {
		after time.Duration
		err   error
		told  error
	}
	for name, syncs := range map[string][]sync{
		"never":                        {{0, nil, nil}, {long, nil, nil}},
		"once":                         {{0, first, nil}, {long, nil, nil}, {long, nil, nil}},
		"twice in a moment":            {{0, first, nil}, {long / 2, second, nil}},
		"the last is told":             {{0, first, nil}, {long, second, second}, {0, first, first}},
		"success ends it":              {{0, first, nil}, {long, first, first}, {long, nil, nil}, {long, first, nil}},
		"success in between counts":    {{0, first, nil}, {long / 2, nil, nil}, {long / 2, first, nil}, {long / 2, first, nil}},
		"many in a moment, then later": {{0, first, nil}, {0, first, nil}, {0, first, nil}, {long, first, first}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var f fault
				for i, s := range syncs {
					<-time.After(s.after)
					if f.note(s.err, long); !errors.Is(f.get(), s.told) || (s.told == nil) != (f.get() == nil) {
						t.Errorf("after sync %d: told %v, want %v", i, f.get(), s.told)
					}
				}
			})
		})
	}
}

func TestTun0TellsWhatItCannotMend(t *testing.T) {
	netns := inNetNS(t)
	other := config.MAC(config.Gateway(prefixes("10.200.0.0/23")[0]))
	addInterface(t, Tun0Name, other)
	tun0 := NewTun0(node1())
	background(t, netns, func(ctx context.Context) { tun0.Run(ctx, 50*time.Millisecond) })
	eventually(t, "an interface of somebody else's is told", func() bool {
		err := tun0.Healthy()
		return err != nil && strings.Contains(err.Error(), "rename that one")
	})
	sh(t, "ip tuntap del tun0 mode tap")
	eventually(t, "a missing interface is told", func() bool {
		err := tun0.Healthy()
		return err != nil && strings.Contains(err.Error(), "find tun0")
	})
	addInterface(t, Tun0Name, config.MAC(config.Gateway(node1().Subnets[0])))
	eventually(t, "what is mended is not told any more", func() bool { return tun0.Healthy() == nil })
	wantState(t, node1State())
}

func TestFirewallTellsWhatItCannotMend(t *testing.T) {
	netns := inNetNS(t)
	f := newFirewall(t, openShift())
	background(t, netns, func(ctx context.Context) { f.Run(ctx, 50*time.Millisecond) })
	eventually(t, "Run makes the rules", func() bool {
		return slices.Equal(sorted(Rules(openShift()).String()), sorted(backend("iptables-nft").save(t)))
	})
	if err := f.Healthy(); err != nil {
		t.Errorf("it tells %v", err)
	}
	// A rule that iptables can neither read nor remove.
	sh(t, "nft add rule ip nat OVSDN-MASQUERADE numgen inc mod 2 vmap { 0 : accept }")
	eventually(t, "a chain that iptables cannot read is told", func() bool {
		err := f.Healthy()
		return err != nil && strings.Contains(err.Error(), "nft list chain ip nat OVSDN-MASQUERADE")
	})
	sh(t, "nft flush chain ip nat OVSDN-MASQUERADE")
	eventually(t, "what is mended is not told any more", func() bool { return f.Healthy() == nil })
}
