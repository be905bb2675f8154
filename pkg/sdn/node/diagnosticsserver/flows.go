package diagnosticsserver

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// serveFlows answers one request at a time: a dump of all flows takes vswitchd and the agent a moment.
func (h *Handler) serveFlows(w http.ResponseWriter, r *http.Request) {
	if !h.dumping.CompareAndSwap(false, true) {
		refuse(w, failf(http.StatusTooManyRequests, "the agent of node %s answers another request for flows; retry", h.options.NodeName))
		return
	}
	defer h.dumping.Store(false)
	ctx, cancel := context.WithTimeout(r.Context(), answerTimeout)
	defer cancel()
	answer, err := h.flows(ctx, r)
	if err != nil {
		refuse(w, err)
		return
	}
	send(w, answer)
}

func (h *Handler) flows(ctx context.Context, r *http.Request) (*diagnostics.NodeFlows, error) {
	object, err := parse(r)
	if err != nil {
		return nil, err
	}
	n, err := h.ready()
	if err != nil {
		return nil, err
	}
	flows, err := n.compare(ctx, h.options.NodeName, object)
	if err != nil {
		return nil, err
	}
	answer := &diagnostics.NodeFlows{TypeMeta: h.typeMeta("NodeFlows"), ObjectMeta: metav1.ObjectMeta{Name: h.options.NodeName}}
	if object != nil {
		answer.Object = object.String()
	}
	answer.Flows, answer.Truncated = bound(flows, diagnostics.MaxFlows)
	return answer, nil
}

// maxComparisons bounds the number of comparisons while the agent writes to the switch.
const maxComparisons = 3

// compare compares the wanted flows of the store with those of the switch. A write of the agent in the meantime causes differences: it compares again, and
// omits those that the last comparison but one did not find.
func (n *Network) compare(ctx context.Context, node string, object *diagnostics.Object) ([]diagnostics.Flow, error) {
	var previous map[ovs.Key]diagnostics.FlowState
	for i := 1; ; i++ {
		snapshot := n.Store.Snapshot()
		pods := n.Pods()
		wanted, err := n.selects(node, object, snapshot, pods)
		if err != nil {
			return nil, err
		}
		dump, err := n.Switch.DumpFlows(ctx)
		if err != nil {
			return nil, failf(http.StatusServiceUnavailable, "read the flows of the bridge: %w", err)
		}
		isCurrent := n.Store.IsCurrent(snapshot)
		c := comparison{wanted: wanted, names: newNames(n, pods), tables: pipeline.TableNames()}
		if err := c.run(ctx, snapshot, dump); err != nil {
			return nil, err
		}
		if isCurrent || len(c.differences) == 0 {
			return c.flows, nil
		}
		if i == maxComparisons {
			return c.confirmed(previous), nil
		}
		previous = c.differences
	}
}

// comparison is that of a snapshot with a dump.
type comparison struct {
	wanted      selection
	names       *names
	tables      map[int]string
	flows       []diagnostics.Flow
	differences map[ovs.Key]diagnostics.FlowState
}

func (c *comparison) run(ctx context.Context, snapshot *flowstore.Snapshot, dump []ovs.DumpedFlow) error {
	desired, err := snapshot.Flows(ctx, c.wanted.chooses)
	if err != nil {
		return err
	}
	c.differences = map[ovs.Key]diagnostics.FlowState{}
	byKey := make(map[ovs.Key]*flowstore.DesiredFlow, len(desired))
	for i := range desired {
		byKey[desired[i].Key] = &desired[i]
	}
	for _, is := range dump {
		if err := ctx.Err(); err != nil {
			return err
		}
		want := byKey[is.Key]
		delete(byKey, is.Key)
		if err := c.addInstalled(is, want); err != nil {
			return err
		}
	}
	for _, want := range byKey {
		if c.wanted.wants(want.Key.Match, want.Actions) {
			if err := c.addMissing(want); err != nil {
				return err
			}
		}
	}
	c.sort()
	return nil
}

// addInstalled adds a flow of the switch; want is nil if no chosen owner has it.
func (c *comparison) addInstalled(is ovs.DumpedFlow, want *flowstore.DesiredFlow) error {
	actions := is.Actions()
	f := c.flow(is.Key, is.Cookie, actions)
	f.Packets, f.Bytes, f.State = is.Packets, is.Bytes, diagnostics.FlowInstalled
	if want == nil {
		if !c.wanted.wantsForeign(is.Cookie, is.Key.Match, actions) {
			return nil
		}
		if is.Key.Table != pipeline.AffinityTable { // whose flows the switch learns
			f.State = diagnostics.FlowUnexpected
		}
		c.add(is.Key, f)
		return nil
	}
	if !c.wanted.wants(is.Key.Match, actions) && !c.wanted.wants(want.Key.Match, want.Actions) {
		return nil
	}
	f.Owners = c.names.ofFlow(want.Owners, is.Key.Match, actions)
	if text := want.Key.String() + suffix(want, want.Actions); text != is.Text {
		printed, err := ovs.PrintedActions(want.Key, want.Actions)
		if err != nil {
			return err
		}
		if rest := suffix(want, printed); want.Key.String()+rest != is.Text {
			f.State, f.Desired = diagnostics.FlowDifferent, rest[1:]
		}
	}
	c.add(is.Key, f)
	return nil
}

// suffix returns the part of a desired flow's text that follows the match, as in ovs.DumpedFlow.
func suffix(want *flowstore.DesiredFlow, actions string) string {
	timeout := ""
	if want.IdleTimeout != 0 {
		timeout = fmt.Sprintf(",idle_timeout=%d", want.IdleTimeout)
	}
	return fmt.Sprintf("%s,cookie=%#x,actions=%s", timeout, want.Cookie, actions)
}

func (c *comparison) addMissing(want *flowstore.DesiredFlow) error {
	actions, err := ovs.PrintedActions(want.Key, want.Actions)
	if err != nil {
		actions = want.Actions // of a refused flow
	}
	f := c.flow(want.Key, want.Cookie, actions)
	f.State, f.Owners = diagnostics.FlowMissing, c.names.ofFlow(want.Owners, want.Key.Match, actions)
	c.add(want.Key, f)
	return nil
}

func (c *comparison) flow(k ovs.Key, cookie uint64, actions string) diagnostics.Flow {
	return diagnostics.Flow{
		Table: uint8(k.Table), TableName: c.tables[k.Table], Priority: uint16(k.Priority), Match: k.Match, //nolint:gosec // of a valid flow
		Actions: actions, Cookie: fmt.Sprintf("%#x", cookie),
	}
}

func (c *comparison) add(k ovs.Key, f diagnostics.Flow) {
	c.flows = append(c.flows, f)
	if f.State != diagnostics.FlowInstalled {
		c.differences[k] = f.State
	}
}

func (c *comparison) sort() {
	slices.SortFunc(c.flows, func(a, b diagnostics.Flow) int {
		return cmp.Or(cmp.Compare(a.Table, b.Table), cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Match, b.Match))
	})
}

// confirmed returns the flows without differences that the previous comparison did not find: the agent was installing or removing these.
func (c *comparison) confirmed(previous map[ovs.Key]diagnostics.FlowState) []diagnostics.Flow {
	confirmed := c.flows[:0]
	for _, f := range c.flows {
		key := ovs.Key{Table: int(f.Table), Priority: int(f.Priority), Match: f.Match}
		if f.State != diagnostics.FlowInstalled && previous[key] != f.State {
			if f.State == diagnostics.FlowMissing {
				continue
			}
			f.State, f.Desired = diagnostics.FlowInstalled, ""
		}
		confirmed = append(confirmed, f)
	}
	return confirmed
}

// bound returns at most that many flows, and whether some were left out: installed ones, as long as there are any.
func bound(flows []diagnostics.Flow, most int) (some []diagnostics.Flow, truncated bool) {
	if len(flows) <= most {
		return flows, false
	}
	installed := most
	for _, f := range flows {
		if f.State != diagnostics.FlowInstalled {
			installed--
		}
	}
	some = make([]diagnostics.Flow, 0, most)
	for _, f := range flows {
		if f.State == diagnostics.FlowInstalled {
			if installed <= 0 {
				continue
			}
			installed--
		}
		if len(some) < most {
			some = append(some, f)
		}
	}
	return some, true
}
