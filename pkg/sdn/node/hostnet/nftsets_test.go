package hostnet

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/knftables"
)

// recording records the transactions that nft runs.
type recording struct {
	knftables.Interface
	ran []string
}

func (r *recording) Run(ctx context.Context, tx *knftables.Transaction) error {
	r.ran = append(r.ran, tx.String())
	return r.Interface.Run(ctx, tx)
}

// An agent that starts does not run nft for each node: those of the previous agent are in the set, and others are added at once unless a rule matches the set.
func TestVTEPs_batchedWithNFT(t *testing.T) {
	inNetNS(t)
	const nodes = 50
	ctx := t.Context()
	start := func() (*nftFirewall, *recording) {
		f := newNFT(t, openShift())
		r := &recording{Interface: f.nft}
		f.nft = r
		f.vteps = newVTEPs(nftSets{r})
		syncFirewall(t, f)
		r.ran = nil
		return f, r
	}
	allow := func(f *nftFirewall, number int) {
		for i := range number {
			f.VTEPs().Allow(ctx, fmt.Sprint("node", i), netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}))
		}
	}
	wantEntries := func(want int) {
		t.Helper()
		set, err := nftSets{newNFT(t, openShift()).nft}.list(ctx, vtepSet)
		must(t, err)
		if len(set.Entries) != want {
			t.Errorf("got %d entries, want %d", len(set.Entries), want)
		}
	}
	first, r := start()
	allow(first, nodes)
	if len(r.ran) > 0 {
		t.Errorf("new node: got transactions %q before Restrict, want none", r.ran)
	}
	restrict(t, first)
	wantEntries(nodes)
	if len(r.ran) > 2 { // entries, then chains
		t.Errorf("new node: got transactions %q, want at most 2", r.ran)
	}
	second, r := start()
	allow(second, nodes+1)
	if len(r.ran) != 1 {
		t.Errorf("restart: got transactions %q, want one for the new node", r.ran)
	}
	wantEntries(nodes + 1)
	second.VTEPs().Settle(ctx, "node0", netip.Addr{})
	allow(second, 1)
	wantEntries(nodes + 1)
	restrict(t, second)
	wantEntries(nodes + 1)
}

// After another program has deleted all tables, egress IPs are restored with the chains that match them.
func TestNFT_egressIPsRestored(t *testing.T) {
	inNetNS(t)
	ctx, old, addr := t.Context(), netip.MustParseAddr("192.0.2.51"), netip.MustParseAddr(egressIP)
	previous := newNFT(t, openShift())
	syncFirewall(t, previous)
	must(t, previous.EgressIPs().Add(ctx, old))
	f := newNFT(t, openShift())
	syncFirewall(t, f)
	r := &recording{Interface: f.nft}
	f.nft = r
	wantSet := func(f Firewall, want ...netip.Addr) {
		t.Helper()
		got, err := f.EgressIPs().List(ctx)
		must(t, err)
		slices.SortFunc(got, netip.Addr.Compare)
		if !slices.Equal(got, want) {
			t.Errorf("got egress IPs %v, want %v", got, want)
		}
	}
	wantSet(f, old)
	must(t, f.EgressIPs().Add(ctx, addr))
	both := []netip.Addr{old, addr}
	slices.SortFunc(both, netip.Addr.Compare)
	sh(t, "nft flush ruleset")
	syncFirewall(t, f)
	wantSet(newNFT(t, openShift()), both...)
	isWhole := func(tx string) bool {
		return strings.Contains(tx, "OVSDN-EGRESS-IPS { "+egressIP+" }") && strings.Contains(tx, "add rule ip ovsdn-host OVSDN-EGRESS ")
	}
	if !slices.ContainsFunc(r.ran, isWhole) {
		t.Errorf("got transactions %q, want one with chains and egress IPs", r.ran)
	}
	must(t, f.EgressIPs().Remove(ctx, old))
	sh(t, "nft flush ruleset")
	syncFirewall(t, f)
	wantSet(f, addr)
}
