package attacks

import (
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
)

// counter reads packet counters by the name of the counting object: a flow, a rule of iptables, a meter, an Event.
type counter func(ctx context.Context) (map[string]uint64, error)

// read reads the counters, again if the switch is too busy to answer.
func (w *world) read(t *testing.T, counters []counter) map[string]uint64 {
	t.Helper()
	var all map[string]uint64
	fixture.Eventually(t, fixture.SyncTime, "read the counters", func(ctx context.Context) error {
		all = map[string]uint64{}
		for _, c := range counters {
			values, err := c(ctx)
			if err != nil {
				return err
			}
			for name, value := range values {
				all[name] += value
			}
		}
		return nil
	})
	return all
}

// difference returns the counters that have grown, and by how much in all.
func difference(before, after map[string]uint64) (names []string, grown uint64) {
	for name, value := range after {
		if value > before[name] {
			names = append(names, fmt.Sprintf("%s: +%d", name, value-before[name]))
			grown += value - before[name]
		}
	}
	slices.Sort(names)
	return names, grown
}

// drops counts what flows of a table, or of all, drop on a node whose text contains all words.
func (w *world) drops(node, table string, words ...string) counter {
	return w.flows(node, table, append([]string{"actions=drop"}, words...)...)
}

// flows counts what flows of a table, or of all, match on a node whose text contains all words.
func (w *world) flows(node, table string, words ...string) counter {
	return func(ctx context.Context) (map[string]uint64, error) {
		flows, err := w.DumpFlows(ctx, node, "-O", "OpenFlow13")
		if err != nil {
			return nil, err
		}
		counts := map[string]uint64{}
		for _, f := range flows {
			if (table == "" || f.Table == table) && fixture.ContainsAll(f.Text, words) {
				counts[fmt.Sprintf("%s: flow cookie=%s,table=%s,%s", node, f.Cookie, f.Table, f.Text)] += f.Packets
			}
		}
		return counts, nil
	}
}

// rules counts what the product's rules of iptables drop on a node whose text contains all words.
func (w *world) rules(node string, words ...string) counter {
	line := regexp.MustCompile(`^\[(\d+):\d+\] (-A OVSDN-.* -j (?:DROP|REJECT).*)$`)
	return func(ctx context.Context) (map[string]uint64, error) {
		out, err := w.TryOutput(ctx, node, "iptables-save", "-c")
		if err != nil {
			return nil, err
		}
		counts := map[string]uint64{}
		for text := range strings.Lines(out) {
			m := line.FindStringSubmatch(strings.TrimSpace(text))
			if m == nil || !fixture.ContainsAll(m[2], words) {
				continue
			}
			value, err := strconv.ParseUint(m[1], 10, 64)
			if err != nil {
				return nil, fmt.Errorf("%w in %q", err, text)
			}
			counts[node+": iptables "+m[2]] += value
		}
		return counts, nil
	}
}

// atHost counts the UDP datagrams to an address and port that arrive at the host of a node, by an nftables rule of its own: nothing has given them another
// destination.
func (w *world) atHost(t *testing.T, node string, dst netip.AddrPort) counter {
	t.Helper()
	table := fmt.Sprintf("attack-%d", w.id())
	w.Output(t, node, "nft", fmt.Sprintf(`table ip %s { chain input { type filter hook input priority -1; ip daddr %s udp dport %d counter; }; }`,
		table, dst.Addr(), dst.Port()))
	t.Cleanup(func() {
		if _, err := w.TryOutput(context.WithoutCancel(t.Context()), node, "nft", "delete", "table", "ip", table); err != nil {
			t.Error(err)
		}
	})
	line := regexp.MustCompile(`(ip daddr .*) counter packets (\d+) `)
	return func(ctx context.Context) (map[string]uint64, error) {
		out, err := w.TryOutput(ctx, node, "nft", "list", "table", "ip", table)
		if err != nil {
			return nil, err
		}
		m := line.FindStringSubmatch(out)
		if m == nil {
			return nil, fmt.Errorf("no counter in the table %s of %s: %s", table, node, out)
		}
		value, err := strconv.ParseUint(m[2], 10, 64)
		return map[string]uint64{node + ": nftables input " + m[1]: value}, err
	}
}
