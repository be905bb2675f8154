package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/pause"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

const (
	// foreignChangeInterval is the shortest time between two Events of one reason: another program may repeat its change every second, and client-go's recorder
	// lets 25 Warnings of an agent on its Node pass, of all reasons, and then one in five minutes (EventSourceObjectSpamFilter).
	foreignChangeInterval = 10 * time.Minute

	// foreignChangeDelay is how long further changes are added to an Event: a flush of the firewall may be repaired in parts.
	foreignChangeDelay = 2 * time.Second
)

// foreignChanges writes Events about changes by other programs that the agent has repaired. It is safe for concurrent use.
type foreignChanges struct {
	warn            func(reason, message string)
	flows, firewall *reconcile.Runner

	mu     sync.Mutex
	drift  ovs.Difference // not yet reported
	chains []string       // not yet reported
}

func newForeignChanges(warn func(reason, message string)) *foreignChanges {
	f := &foreignChanges{warn: warn}
	f.flows = reconcile.NewRunner("restored flows", foreignChangeInterval, f.warnFlows)
	f.firewall = reconcile.NewRunner("restored firewall", foreignChangeInterval, f.warnFirewall)
	return f
}

// run writes Events until the context ends.
func (f *foreignChanges) run(ctx context.Context) {
	var runners sync.WaitGroup
	runners.Go(func() { f.flows.Run(ctx) })
	runners.Go(func() { f.firewall.Run(ctx) })
	runners.Wait()
}

func (f *foreignChanges) flowsRestored(d ovs.Difference) {
	f.mu.Lock()
	f.drift.Add(d)
	f.mu.Unlock()
	f.flows.Trigger()
}

func (f *foreignChanges) firewallRestored(chains []string) {
	f.mu.Lock()
	f.chains = append(f.chains, chains...)
	slices.Sort(f.chains)
	f.chains = slices.Compact(f.chains)
	f.mu.Unlock()
	f.firewall.Trigger()
}

func (f *foreignChanges) warnFlows(ctx context.Context) error {
	pause.For(ctx, foreignChangeDelay)
	f.mu.Lock()
	d := f.drift
	f.drift = ovs.Difference{}
	f.mu.Unlock()
	if d.Changes() == 0 { // reported by the previous call, which was waiting
		return nil
	}
	f.warn(eventreason.FlowsRestored, fmt.Sprintf("another program changed flows, groups or meters of br0, and the agent repaired them: in total %d missing, %d altered and %d added since the last such Event. "+
		"Find the program that writes to br0; lines \"Repaired flows\" in the agent's log have examples of altered and added ones", d.Missing, d.Altered, d.Foreign))
	return nil
}

func (f *foreignChanges) warnFirewall(ctx context.Context) error {
	pause.For(ctx, foreignChangeDelay)
	f.mu.Lock()
	chains := f.chains
	f.chains = nil
	f.mu.Unlock()
	if len(chains) == 0 {
		return nil
	}
	f.warn(eventreason.FirewallRestored, fmt.Sprintf("another program changed the agent's chains of the host's firewall, or deleted jumps to them: %s; the agent restored them. "+
		"Find the program that changes the firewall; lines \"Restored the host's network settings\" in the agent's log have the rules that it wrote and deleted", strings.Join(chains, ", ")))
	return nil
}
