package main

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"time"

	networkv1 "github.com/openshift/api/network/v1"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

// egressFigure: a changed EgressNetworkPolicy, from the object to the flows of a switch with ten policies.
func egressFigure() figure {
	return figure{
		name:  "egress",
		about: "an egress firewall of 1,000 rules rewritten, and one of its rules changed, beside the flow-mods on an open connection; flow-mods sent",
		run:   runEgress,
	}
}

const (
	egressPolicies = 10
	egressRules    = 1000 // of each
)

// egressNode is a node with the egress firewalls of ten namespaces, the first of which changes.
type egressNode struct {
	b      *B
	store  *flowstore.Store
	now    pipeline.EgressVerdicts
	change flowstore.Change // that set it
}

// newEgressNode returns a node with the policy in each namespace.
func (b *B) newEgressNode(bridge ovs.Interface, all *networkv1.EgressNetworkPolicy) *egressNode {
	b.Helper()
	n := &egressNode{b: b, store: flowstore.New(bridge)}
	go func() { _ = n.store.Run(b.Context()) }() // ends with the figure's context
	var changes []flowstore.Change
	for id := pipeline.EgressFirewallID(egressPolicies); id > 0; id-- { // the first is the last, and that of n
		f, err := firewallOf(id, all)
		b.must(err)
		n.now = f.Compile(pipeline.EgressVerdicts{})
		n.change = flowstore.Change{Owner: egressOwner(id), State: n.now.State()}.Prepare()
		changes = append(changes, n.change)
	}
	b.must(flowstore.WaitAll(b.Context(), n.store.SetAll(changes...)))
	return n
}

func egressOwner(id pipeline.EgressFirewallID) pipeline.Owner {
	return pipeline.Owner{Kind: pipeline.KindEgressFirewall, Key: fmt.Sprint("tenant", id)}
}

// firewallOf reads a policy, as the agent does.
func firewallOf(id pipeline.EgressFirewallID, o *networkv1.EgressNetworkPolicy) (pipeline.EgressFirewall, error) {
	rules, err := config.MergeEgressNetworkPolicies([]*networkv1.EgressNetworkPolicy{o})
	f := pipeline.EgressFirewall{ID: id}
	for _, r := range rules {
		f.Rules = append(f.Rules, pipeline.EgressFirewallRule{To: []netip.Prefix{r.To}, Deny: r.Deny})
	}
	return f, err
}

// set makes the policy that of the first namespace, and returns when its flows are installed.
func (n *egressNode) set(o *networkv1.EgressNetworkPolicy) error {
	f, err := firewallOf(1, o)
	if err != nil {
		return err
	}
	firewall := f.Compile(n.now)
	revoked := !n.now.IsWithin(firewall)
	n.now, n.change = firewall, flowstore.Change{Owner: egressOwner(1), State: firewall.State()}.PrepareAfter(n.change)
	return flowstore.WaitAll(n.b.Context(), n.store.Update(flowstore.Update{
		Changes: []flowstore.Change{n.change},
		Revoked: flowstore.Revocation{Permission: revoked},
	}))
}

// egressPolicy returns a policy of rules for addresses in 198.18.0.0/16 or, if the number is another, in a network beside it.
func egressPolicy(network int) *networkv1.EgressNetworkPolicy {
	o := &networkv1.EgressNetworkPolicy{}
	add := func(action networkv1.EgressNetworkPolicyRuleType, to string) {
		o.Spec.Egress = append(o.Spec.Egress, networkv1.EgressNetworkPolicyRule{Type: action, To: networkv1.EgressNetworkPolicyPeer{CIDRSelector: to}})
	}
	actions := []networkv1.EgressNetworkPolicyRuleType{networkv1.EgressNetworkPolicyRuleAllow, networkv1.EgressNetworkPolicyRuleDeny}
	for i := range egressRules - 1 {
		add(actions[i%len(actions)], fmt.Sprintf("198.%d.%d.%d/32", 18+network, i>>8, i&0xff))
	}
	add(networkv1.EgressNetworkPolicyRuleDeny, "0.0.0.0/0")
	return o
}

// withOtherVerdict returns a copy in which one rule in the middle allows instead of denying, or the reverse.
func withOtherVerdict(o *networkv1.EgressNetworkPolicy) *networkv1.EgressNetworkPolicy {
	changed := o.DeepCopy()
	r := &changed.Spec.Egress[egressRules/2]
	if r.Type == networkv1.EgressNetworkPolicyRuleAllow {
		r.Type = networkv1.EgressNetworkPolicyRuleDeny
	} else {
		r.Type = networkv1.EgressNetworkPolicyRuleAllow
	}
	return changed
}

func runEgress(b *B) {
	policy := egressPolicy(0)
	s, backend := b.newBridge()
	ours := b.newEgressNode(backend, policy)
	floor := b.newEgressFloor(s, policy)
	defer floor.of.conn.Close()
	countedSwitch, _ := b.newBridge()
	counter := b.newCounter(countedSwitch)
	through := native.New(ovstest.Bridge, counter.dir)
	b.Cleanup(through.Close)
	counted := b.newEgressNode(through, policy)

	for _, step := range []struct {
		name  string
		to    *networkv1.EgressNetworkPolicy
		bound []bound
	}{
		{"rewrite", egressPolicy(1), []bound{within(20, "ms")}},
		{"1 changed rule", withOtherVerdict(policy), []bound{within(2, "ms")}},
	} {
		name := fmt.Sprintf("%s, %d rules, %d policies", step.name, egressRules, egressPolicies)
		mods := [][]*openflow.FlowMod{floor.leading(policy, step.to), floor.leading(step.to, policy)}
		states := []*networkv1.EgressNetworkPolicy{step.to, policy}
		times := map[string][]time.Duration{}
		for i := range b.samples + b.samples%2 { // so that both policies end as they were
			b.step("%s: %d of %d", name, i+1, b.samples)
			for _, w := range turns([]way{
				{"ours", func() error { return ours.set(states[i%2]) }},
				{"floor", func() error { return floor.of.apply(mods[i%2]) }},
			}, i) {
				took, err := timed(w.do)
				b.must(err)
				times[w.name] = append(times[w.name], took)
			}
		}
		b.record(name, "ms", seriesOf("ours", milliseconds(times["ours"])), seriesOf("floor", milliseconds(times["floor"]), step.bound...))

		counter.reset()
		b.must(counted.set(step.to))
		sent := float64(counter.flowMods(b))
		b.must(counted.set(policy))
		b.record(name, "flow-mods", seriesOf("ours", []float64{sent}), seriesOf("needed", []float64{float64(len(mods[0]))}, atMost(1)))
	}
}

// egressFloor installs the flow-mods that lead from one policy to another, which it knows in advance, on another bridge of the same switch.
type egressFloor struct {
	b  *B
	of *ofconn
}

func (b *B) newEgressFloor(s *ovstest.Switch, all *networkv1.EgressNetworkPolicy) *egressFloor {
	b.Helper()
	s.VSCtl(b, "--may-exist", "add-br", floorBridge, "--", "set", "bridge", floorBridge, "datapath_type=netdev", "fail-mode=secure")
	of, err := dialOpenFlow(filepath.Join(s.RunDir, floorBridge+".mgmt"))
	b.must(err)
	f := &egressFloor{b: b, of: of}
	for id := pipeline.EgressFirewallID(1); id <= egressPolicies; id++ {
		b.must(of.apply(f.flowMods(id, all)))
	}
	return f
}

// flowMods returns those that add the policy's flows.
func (f *egressFloor) flowMods(id pipeline.EgressFirewallID, o *networkv1.EgressNetworkPolicy) []*openflow.FlowMod {
	f.b.Helper()
	firewall, err := firewallOf(id, o)
	f.b.must(err)
	mods, err := flowMods(firewall.Compile(pipeline.EgressVerdicts{}).State().Flows)
	f.b.must(err)
	for _, m := range mods {
		m.Cookie = egressOwner(id).Cookie()
	}
	return mods
}

// leading returns the flow-mods that lead from one policy of the first namespace to another.
func (f *egressFloor) leading(from, to *networkv1.EgressNetworkPolicy) []*openflow.FlowMod {
	f.b.Helper()
	before, after := f.flowMods(1, from), f.flowMods(1, to)
	text := map[openflow.FlowKey]string{}
	for _, m := range before {
		text[m.Key()] = m.String()
	}
	var mods []*openflow.FlowMod
	for _, m := range after {
		if text[m.Key()] != m.String() {
			mods = append(mods, m)
		}
		delete(text, m.Key())
	}
	for _, m := range before {
		if _, deleted := text[m.Key()]; deleted {
			mods = append(mods, &openflow.FlowMod{Command: openflow.FlowDeleteStrict, Table: m.Table, Priority: m.Priority, Match: m.Match})
		}
	}
	return mods
}
