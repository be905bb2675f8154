package main

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/bareagent"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

// bundleFigure: a bundle of about the size of a pod's flows. The floor sends its bytes on an open connection.
func bundleFigure() figure {
	return figure{
		name:  "bundle",
		about: "a bundle of 5 flows, beside its bytes on an open connection and ovs-ofctl",
		run:   runBundle,
	}
}

// newBridge starts a switch with a br0 as the agent makes it.
func (b *B) newBridge() (*ovstest.Switch, *native.Native) {
	b.Helper()
	s := ovstest.Start(b)
	backend := native.New(ovstest.Bridge, s.RunDir)
	b.Cleanup(backend.Close)
	b.must(bareagent.SetUpBridge(b.Context(), backend))
	return s, backend
}

func runBundle(b *B) {
	s, backend := b.newBridge()
	bare, err := dialOpenFlow(filepath.Join(s.RunDir, ovstest.Bridge+".mgmt"))
	b.must(err)
	defer bare.conn.Close()

	const size = 5
	addr := netip.MustParseAddr("10.128.0.2")
	flows := unmetered(podNetwork().Pod(pipeline.Pod{OFPort: 3, MAC: config.MAC(addr), Addrs: []netip.Addr{addr}}).Flows)[:size]
	mods, err := flowMods(flows)
	b.must(err)
	file := b.flowFile(flows)
	ours := func() error {
		tx := backend.NewTransaction()
		for _, f := range flows {
			tx.Add(f)
		}
		return backend.Run(b.Context(), tx)
	}
	ofctl := func() error {
		s.OFCtl(b, "--bundle", "add-flows", ovstest.Bridge, file)
		return nil
	}
	sample := b.alternate("bundle", b.samples, func() { s.OFCtl(b, "del-flows", ovstest.Bridge) },
		way{"ours", ours},
		way{"floor", func() error { return bare.apply(mods) }},
		way{"ovs-ofctl", ofctl})
	b.record("5 flows", "ms", seriesOf("ours", milliseconds(sample["ours"])),
		seriesOf("floor", milliseconds(sample["floor"])),
		seriesOf("ovs-ofctl", milliseconds(sample["ovs-ofctl"]), quickerBy(20)))
}

// way is one way to do what is measured.
type way struct {
	name string
	do   func() error
}

// alternate runs all ways alternately, n times, each time after before, and returns their times.
func (b *B) alternate(what string, n int, before func(), ways ...way) map[string][]time.Duration {
	b.Helper()
	times := map[string][]time.Duration{}
	for i := range n {
		b.step("%s: %d of %d", what, i+1, n)
		for _, w := range turns(ways, i) {
			before()
			took, err := timed(w.do)
			if err != nil {
				b.Fatalf("%s: %s: %v", what, w.name, err)
			}
			times[w.name] = append(times[w.name], took)
		}
	}
	return times
}

// replaceFigure: what an agent does once when it starts.
func replaceFigure() figure {
	return figure{
		name:  "replace",
		about: "50,000 flows from empty and unchanged, beside `ovs-ofctl --bundle replace-flows`; flow-mods sent",
		run:   runReplace,
	}
}

func runReplace(b *B) {
	const size = 50_000
	s, backend := b.newBridge()
	flows, meters := b.manyFlows(size)
	file := b.flowFile(flows)
	for _, m := range meters { // ovs-ofctl replaces flows alone
		text, err := ovs.MeterText(m)
		b.must(err)
		s.OFCtl(b, "add-meter", ovstest.Bridge, text)
	}
	// Both ways again, through something that counts.
	counter := b.newCounter(s)
	counted := native.New(ovstest.Bridge, counter.dir)
	b.Cleanup(counted.Close)

	ofctl := func(bridge string) func() error {
		return func() error {
			s.OFCtl(b, "--bundle", "replace-flows", bridge, file)
			return nil
		}
	}
	ours := func(i ovs.Interface) func() error {
		return func() error {
			_, err := i.Replace(b.Context(), ovs.State{Flows: flows, Meters: meters})
			return err
		}
	}
	for _, start := range []struct {
		from   string
		before func()
		time   []bound
		sent   []bound // of flow-mods
	}{
		{"from empty", func() { s.OFCtl(b, "del-flows", ovstest.Bridge) }, []bound{atMost(1.5)}, nil},
		{"unchanged", func() {}, nil, []bound{none()}},
	} {
		name := fmt.Sprintf("%d flows, %s", size, start.from)
		times := b.alternate(name, b.rounds, start.before, way{"ours", ours(backend)}, way{"ovs-ofctl", ofctl(ovstest.Bridge)})
		b.record(name, "ms", seriesOf("ours", milliseconds(times["ours"])), seriesOf("ovs-ofctl", milliseconds(times["ovs-ofctl"]), start.time...))

		sent := map[string]float64{}
		for _, w := range []way{{"ours", ours(counted)}, {"ovs-ofctl", ofctl("unix:" + counter.socket())}} {
			start.before()
			counter.reset()
			b.must(w.do())
			sent[w.name] = float64(counter.flowMods(b))
		}
		b.record(name, "flow-mods", seriesOf("ours", []float64{sent["ours"]}), seriesOf("ovs-ofctl", []float64{sent["ovs-ofctl"]}, start.sent...))
	}
}

// manyFlows compiles a node of a cluster that is large enough.
func (b *B) manyFlows(n int) ([]*ovs.Flow, []ovs.Meter) {
	b.Helper()
	node := podNetwork()
	static, err := node.Static()
	b.must(err)
	flows := static.Flows
	vtep, subnet := netip.MustParseAddr("192.168.0.1"), netip.MustParseAddr("10.128.16.0")
	for len(flows) < n {
		const bits = 28 // so that they fit into the cluster network
		peer := node.Peer(pipeline.Peer{VTEP: vtep, Subnets: []netip.Prefix{netip.PrefixFrom(subnet, bits)}})
		cookie := pipeline.Owner{Kind: pipeline.KindHostSubnet, Key: vtep.String()}.Cookie()
		for _, f := range peer.Flows {
			f.Cookie = cookie
		}
		flows = append(flows, peer.Flows...)
		vtep = vtep.Next()
		for range 1 << (32 - bits) {
			subnet = subnet.Next()
		}
	}
	return flows[:n], static.Meters
}

// flowFile writes the flows for ovs-ofctl.
func (b *B) flowFile(flows []*ovs.Flow) string {
	b.Helper()
	var text strings.Builder
	for _, f := range flows {
		line, err := ovs.FlowText(f)
		b.must(err)
		text.WriteString(line + "\n")
	}
	name := filepath.Join(b.TempDir(), "flows")
	b.must(os.WriteFile(name, []byte(text.String()), 0o600))
	return name
}

func flowMods(flows []*ovs.Flow) ([]*openflow.FlowMod, error) {
	mods := make([]*openflow.FlowMod, len(flows))
	for i, flow := range flows {
		text, err := ovs.FlowText(flow)
		if err != nil {
			return nil, err
		}
		if mods[i], err = openflow.ParseFlow(text); err != nil {
			return nil, err
		}
	}
	return mods, nil
}

// unmetered returns the flows that pass no meter, which would have to be on the switch before.
func unmetered(flows []*ovs.Flow) []*ovs.Flow {
	return slices.DeleteFunc(slices.Clone(flows), func(f *ovs.Flow) bool {
		return slices.ContainsFunc(f.Actions, func(a ovs.Action) bool {
			text, err := a.MarshalText()
			return err == nil && strings.HasPrefix(string(text), "meter:")
		})
	})
}
