package hostnet

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

func TestSyncStatus(t *testing.T) {
	const threshold = 5 * time.Second
	first, second := errors.New("first"), errors.New("second")
	type sync struct {
		after time.Duration
		err   error
		want  error
	}
	for name, syncs := range map[string][]sync{
		"never":                      {{0, nil, nil}, {threshold, nil, nil}},
		"once":                       {{0, first, nil}, {threshold, nil, nil}, {threshold, nil, nil}},
		"twice within the threshold": {{0, first, nil}, {threshold / 2, second, nil}},
		"the last is reported":       {{0, first, nil}, {threshold, second, second}, {0, first, first}},
		"success ends it":            {{0, first, nil}, {threshold, first, first}, {threshold, nil, nil}, {threshold, first, nil}},
		"success in between":         {{0, first, nil}, {threshold / 2, nil, nil}, {threshold / 2, first, nil}, {threshold / 2, first, nil}},
		"many at once, then later":   {{0, first, nil}, {0, first, nil}, {0, first, nil}, {threshold, first, first}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var status syncStatus
				for i, s := range syncs {
					<-time.After(s.after)
					status.record(s.err, threshold)
					if got := status.err(); !errors.Is(got, s.want) || (s.want == nil) != (got == nil) {
						t.Errorf("after sync %d: got %v, want %v", i, got, s.want)
					}
				}
			})
		})
	}
}

func TestTun0_healthy(t *testing.T) {
	netns := inNetNS(t)
	other := config.MAC(config.Gateway(prefixes("10.200.0.0/23")[0]))
	addInterface(t, Tun0Name, other)
	tun0 := NewTun0(node1())
	background(t, netns, func(ctx context.Context) { tun0.Run(ctx, 50*time.Millisecond) })
	eventually(t, "Healthy reports an interface of another program", func() bool {
		err := tun0.Healthy()
		return err != nil && strings.Contains(err.Error(), "rename it")
	})
	sh(t, "ip tuntap del tun0 mode tap")
	eventually(t, "Healthy reports a missing interface", func() bool {
		err := tun0.Healthy()
		return err != nil && strings.Contains(err.Error(), "find tun0")
	})
	addInterface(t, Tun0Name, config.MAC(config.Gateway(node1().Subnets[0])))
	eventually(t, "Healthy returns nil after the repair", func() bool { return tun0.Healthy() == nil })
	wantState(t, node1State())
}

// A sysctl that can't be written is reported, also to the Node's condition, until another program corrects it.
func TestTun0_healthyReadOnlySysctls(t *testing.T) {
	inNetNS(t)
	addInterface(t, Tun0Name, config.MAC(config.Gateway(node1().Subnets[0])))
	syncTun0(t, node1())
	netns, err := os.Open("/proc/thread-self/ns/net")
	must(t, err)
	defer netns.Close()
	tun0 := NewTun0(node1())
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { // its thread gets another mount namespace, and ends with it
		defer close(done)
		if err := readOnlyProcSys(int(netns.Fd())); err != nil {
			t.Error(err)
			return
		}
		tun0.Run(ctx, 50*time.Millisecond)
	}()
	defer func() { stop(); <-done }()
	sh(t, "sysctl -qw net.ipv4.conf.tun0.forwarding=0")
	eventually(t, "Healthy reports the sysctl", func() bool {
		err := tun0.Healthy()
		return err != nil && strings.Contains(err.Error(), "set sysctl net.ipv4.conf.tun0.forwarding from 0 to 1")
	})
	sh(t, "sysctl -qw net.ipv4.conf.tun0.forwarding=1")
	eventually(t, "Healthy returns nil after the correction", func() bool { return tun0.Healthy() == nil })
}

func TestFirewall_healthy(t *testing.T) {
	netns := inNetNS(t)
	f := newFirewall(t, openShift())
	background(t, netns, func(ctx context.Context) { f.Run(ctx, 50*time.Millisecond) })
	eventually(t, "Run adds the rules", func() bool {
		return slices.Equal(sorted(Rules(openShift()).String()), sorted(backend("iptables-nft").save(t)))
	})
	if err := f.Healthy(); err != nil {
		t.Errorf("Healthy: got %v, want nil", err)
	}
	// A rule that iptables can neither read nor remove.
	sh(t, "nft add rule ip nat OVSDN-MASQUERADE numgen inc mod 2 vmap { 0 : accept }")
	eventually(t, "Healthy reports a chain that iptables can't read", func() bool {
		err := f.Healthy()
		return err != nil && strings.Contains(err.Error(), "nft list chain ip nat OVSDN-MASQUERADE")
	})
	sh(t, "nft flush chain ip nat OVSDN-MASQUERADE")
	eventually(t, "Healthy returns nil after the repair", func() bool { return f.Healthy() == nil })
}
