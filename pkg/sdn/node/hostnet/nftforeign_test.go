package hostnet

import (
	"context"
	"strings"
	"testing"
	"time"
)

// Chains of other programs that drop by default are reported until they have a rule about tun0.
func TestNFT_dropPolicies(t *testing.T) {
	inNetNS(t)
	sh(t, `nft 'add table inet fw; add chain inet fw forward { type filter hook forward priority 0; policy drop; }; add chain inet fw output { type filter hook output priority 0; policy drop; }'
		iptables -P INPUT DROP`)
	f := newNFT(t, openShift())
	syncFirewall(t, f)
	if got := f.Skipped(); got != nil {
		t.Errorf("Skipped after Sync: got %v, want that only Run looks for chains of other programs", got)
	}
	f.checkDropPolicies(t.Context())
	got := f.Skipped()
	if len(got) != 1 || got[0].Feature != FeatureAccept {
		t.Fatalf("Skipped: got %v, want %s", got, FeatureAccept)
	}
	wantError(t, got[0].Err, "inet fw forward", "ip filter INPUT")
	if strings.Contains(got[0].Err.Error(), "output") || !strings.Contains(got[0].Remedy, "4789") {
		t.Errorf("got %+v, want the remedy, and not the chain of another hook", got[0])
	}
	sh(t, "nft add rule inet fw forward iifname tun0 accept; iptables -P INPUT ACCEPT")
	f.checkDropPolicies(t.Context())
	if got := f.Skipped(); got != nil {
		t.Errorf("Skipped with a rule about tun0: got %v, want none", got)
	}
}

// Run looks for them at once, and not after each event.
func TestNFT_dropPoliciesInRun(t *testing.T) {
	netns := inNetNS(t)
	const fw = "nft 'add table inet fw; add chain inet fw forward { type filter hook forward priority 0; policy drop; }'"
	sh(t, fw)
	f := newNFT(t, openShift())
	background(t, netns, func(ctx context.Context) { f.Run(ctx, time.Hour) })
	eventually(t, "Run reports the chain", func() bool { return len(f.Skipped()) == 1 })
	for range 2 { // once the second event is handled, all after the first one is done
		sh(t, "nft flush ruleset")
		eventually(t, "Run restores the rules", func() bool { return strings.Contains(sh(t, "nft list ruleset"), "OVSDN-MASQUERADE") })
	}
	if got := f.Skipped(); len(got) != 1 {
		t.Errorf("after events: got %v, want the result of the last check", got)
	}
}
