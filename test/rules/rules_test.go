// Package rules tests the alert rules with Prometheus' own packages. It is a module of its own, since these have many dependencies.
package rules

import (
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/rules"
)

const file = "../../deploy/monitoring/rules.yaml"

// scenario has series, one sample a minute, for which a rule fires or not.
type scenario struct {
	alert         string
	fires, silent string
}

func scenarios() []scenario {
	const dropped, cni, reconciled = "ovsdn_dropped_packets_total", "ovsdn_cni_request_duration_seconds", "ovsdn_reconcile_duration_seconds_count"
	const probes = "ovsdn_peer_probes_total"
	return []scenario{
		{"OVSDNScrapeFails", `up{job="ovsdn",program="ovsdn-node",instance="node1"} 1x5 0x25`, `up{job="ovsdn",program="ovsdn-node",instance="node1"} 1 0 0 0 0 1x25`},
		{"OVSDNAgentsAbsent", `up{job="ovsdn",program="ovsdn-controller"} 1x30`, `up{job="ovsdn",program="ovsdn-node"} 0x30`},
		{"OVSDNNodeNotReady", `ovsdn_node_ready 0x30`, `ovsdn_node_ready 1 0 0 0 0 1x25`},
		{"OVSDNFlowsRefused", `ovsdn_flow_owners_refused 2x30`, `ovsdn_flow_owners_refused 0 2 2 2 0x26`},
		{"OVSDNFlowDrift", `ovsdn_flow_repairs_total 0+1x30`, `ovsdn_flow_repairs_total 0x10 2x20`},
		{"OVSDNEgressFirewallsBeyondBudget", `ovsdn_egress_firewalls_beyond_budget 1x30`, `ovsdn_egress_firewalls_beyond_budget 0 1 1 1 0x26`},
		{"OVSDNEgressIPNotPlaced", `ovsdn_egress_ips{state="not-placed"} 1x30`, `ovsdn_egress_ips{state="placed"} 5x30`},
		{
			"OVSDNOverlayLosesPackets",
			probes + `{path="overlay-mtu",result="lost"} 0+20x30` + "\n" + probes + `{path="overlay-mtu",result="answered"} 0+100x30`,
			probes + `{path="underlay",result="lost"} 0+90x30` + "\n" + probes + `{path="overlay",result="lost"} 0+9x30` + "\n" + probes + `{path="overlay",result="answered"} 0+100x30`,
		},
		{"OVSDNForgedTunnelPackets", dropped + `{reason="foreign-source"} 0x20 1x10`, dropped + `{reason="spoofed-source"} 0+9x30`},
		{"OVSDNSpoofedPackets", dropped + `{reason="pod-tunnel"} 0+90x30`, dropped + `{reason="spoofed-source"} 0+30x30`},
		{"OVSDNPodAddressesLow", "ovsdn_pod_addresses_free 4x30\novsdn_pod_addresses_capacity 100x30", "ovsdn_pod_addresses_free 6x30\novsdn_pod_addresses_capacity 100x30"},
		{"OVSDNConntrackFull", "ovsdn_conntrack_entries 95x30\novsdn_conntrack_entries_limit 100x30", "ovsdn_conntrack_entries 85x30\novsdn_conntrack_entries_limit 100x30"},
		{"OVSDNConntrackZoneFull", `ovsdn_conntrack_fullest_zone_ratio{class="target"} 0.95x30`, `ovsdn_conntrack_fullest_zone_ratio{class="target"} 0.85x30`},
		{"OVSDNUpcallsLost", `ovsdn_datapath_lost_packets_total 0+1x30`, `ovsdn_datapath_lost_packets_total 7x30`},
		{"OVSDNSwitchSampleFails", `ovsdn_switch_sample_failures_total 0+4x30`, `ovsdn_switch_sample_failures_total 0x5 2x25`},
		{"OVSDNCNIRequestsFail", cni + `_count{verb="ADD",result="error"} 0+1x30`, cni + `_count{verb="ADD",result="retry"} 0+9x30`},
		{
			"OVSDNPodSetUpSlow",
			cni + `_bucket{verb="ADD",le="4.096"} 0+9x30` + "\n" + cni + `_bucket{verb="ADD",le="16.384"} 0+10x30` + "\n" + cni + `_bucket{verb="ADD",le="+Inf"} 0+10x30`,
			cni + `_bucket{verb="ADD",le="4.096"} 0+10x30` + "\n" + cni + `_bucket{verb="ADD",le="16.384"} 0+10x30` + "\n" + cni + `_bucket{verb="ADD",le="+Inf"} 0+10x30`,
		},
		{"OVSDNNoLeader", `ovsdn_controller_leader{instance="a"} 0x30`, "ovsdn_controller_leader{instance=\"a\"} 0x30\novsdn_controller_leader{instance=\"b\"} 1x30"},
		{"OVSDNSubnetsLow", "ovsdn_controller_subnets_free 1x30\novsdn_controller_subnets_capacity 512x30", "ovsdn_controller_subnets_free 500x30\novsdn_controller_subnets_capacity 512x30"},
		{
			"OVSDNReconcileFails",
			reconciled + `{loop="services",result="error"} 0+6x40` + "\n" + reconciled + `{loop="services",result="success"} 0+1x40`,
			reconciled + `{loop="services",result="error"} 0+1x40` + "\n" + reconciled + `{loop="services",result="success"} 0+6x40`,
		},
	}
}

func load(t *testing.T) map[string]rulefmt.Rule {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	groups, errs := rulefmt.Parse(content, false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
	if len(errs) > 0 {
		t.Fatalf("parse %s: %v", file, errs)
	}
	found := map[string]rulefmt.Rule{}
	for _, g := range groups.Groups {
		for _, r := range g.Rules {
			if _, twice := found[r.Alert]; twice || r.Alert == "" {
				t.Errorf("got the alert %q, want one rule of each name", r.Alert)
			}
			found[r.Alert] = r
		}
	}
	return found
}

// fires reports whether the rule fires within half an hour.
func fires(t *testing.T, r rulefmt.Rule, series string) (fired bool) {
	t.Helper()
	storage := promqltest.LoadedStorage(t, "load 1m\n  "+strings.ReplaceAll(series, "\n", "\n  "))
	expr, err := parser.NewParser(parser.Options{}).ParseExpr(r.Expr)
	if err != nil {
		t.Fatal(err)
	}
	engine := promqltest.NewTestEngine(t, false, 0, 100_000)
	rule := rules.NewAlertingRule(r.Alert, expr, time.Duration(r.For), 0, labels.FromMap(r.Labels), labels.FromMap(r.Annotations), labels.EmptyLabels(), "", true, slog.New(slog.DiscardHandler))
	for minute := range 31 {
		at := time.Unix(0, 0).Add(time.Duration(minute) * time.Minute)
		if _, err := rule.Eval(t.Context(), 0, at, rules.EngineQueryFunc(engine, storage), nil, 0); err != nil {
			t.Fatal(err)
		}
		for _, a := range rule.ActiveAlerts() {
			fired = fired || a.State == rules.StateFiring
			a.Annotations.Range(func(l labels.Label) {
				if strings.Contains(l.Value, "error expanding template") {
					t.Errorf("annotation %s: %s", l.Name, l.Value)
				}
			})
		}
	}
	return fired
}

func TestRules(t *testing.T) {
	all := load(t)
	for _, s := range scenarios() {
		t.Run(s.alert, func(t *testing.T) {
			r, ok := all[s.alert]
			if !ok {
				t.Fatalf("%s has no such alert", file)
			}
			delete(all, s.alert)
			for _, name := range []string{"summary", "description"} {
				if r.Annotations[name] == "" {
					t.Errorf("got no annotation %s, want one", name)
				}
			}
			if !fires(t, r, s.fires) {
				t.Errorf("got no alert for %q, want one", s.fires)
			}
			if fires(t, r, s.silent) {
				t.Errorf("got an alert for %q, want none", s.silent)
			}
		})
	}
	for name := range all {
		t.Errorf("alert %s has no scenario", name)
	}
}
