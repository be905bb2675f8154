package ovs

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// fakeTables are the flows, groups, meters and conntrack entries of the fake bridge.
type fakeTables struct {
	flows  map[Key]*Flow
	texts  map[Key]string
	groups map[uint32]string
	meters map[uint32]string

	rates map[uint32]Meter // of meters
}

func newFakeTables() fakeTables {
	return fakeTables{flows: map[Key]*Flow{}, texts: map[Key]string{}, groups: map[uint32]string{}, meters: map[uint32]string{}, rates: map[uint32]Meter{}}
}

func (t fakeTables) clone() fakeTables {
	return fakeTables{flows: maps.Clone(t.flows), texts: maps.Clone(t.texts), groups: maps.Clone(t.groups), meters: maps.Clone(t.meters), rates: maps.Clone(t.rates)}
}

// DumpMeters returns the meters, in no particular order.
func (f *Fake) DumpMeters(ctx context.Context) ([]Meter, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.answer(ctx); err != nil {
		return nil, err
	}
	return slices.Collect(maps.Values(f.tables.rates)), nil
}

// Restart simulates a restart of vswitchd, which loses flows, groups and meters but not OVSDB.
func (f *Fake) Restart() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tables = newFakeTables()
}

// Flows returns the texts of the flows, ordered by table, descending priority and match.
func (f *Fake) Flows() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	keys := slices.SortedFunc(maps.Keys(f.tables.texts), func(a, b Key) int {
		return cmp.Or(cmp.Compare(a.Table, b.Table), cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Match, b.Match))
	})
	texts := make([]string, len(keys))
	for i, k := range keys {
		texts[i] = f.tables.texts[k]
	}
	return texts
}

// Groups returns the texts of the groups, ordered by ID.
func (f *Fake) Groups() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return inOrder(f.tables.groups)
}

// Meters returns the texts of the meters, ordered by ID.
func (f *Fake) Meters() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return inOrder(f.tables.meters)
}

func inOrder(texts map[uint32]string) []string {
	sorted := make([]string, 0, len(texts))
	for _, id := range slices.Sorted(maps.Keys(texts)) {
		sorted = append(sorted, texts[id])
	}
	return sorted
}

// Connect adds a conntrack entry.
func (f *Fake) Connect(c Connections) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tracked = append(f.tracked, c)
}

// Tracked returns the conntrack entries of Connect that were not flushed.
func (f *Fake) Tracked() []Connections {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.tracked)
}

// ListConnections implements Interface.
func (f *Fake) ListConnections(ctx context.Context, zones Zones, each func(Connection)) error {
	if err := zones.Validate(); err != nil {
		return err
	}
	f.mu.Lock()
	err := f.answer(ctx)
	if err == nil && f.bridge == nil {
		err = f.errNoBridge()
	}
	tracked := slices.Clone(f.tracked)
	f.mu.Unlock()
	if err != nil {
		return err
	}
	for _, c := range tracked {
		if zones.Contains(c.Zone) {
			each(Connection{Zone: c.Zone, Protocol: c.Protocol, Original: c.Original, Reply: c.Reply})
		}
	}
	return nil
}

// match reports whether c selects the connection.
func (c Connections) match(connection Connections) bool {
	fits := func(want, is Tuple) bool {
		return (!want.Src.IsValid() || want.Src == is.Src) && (!want.Dst.IsValid() || want.Dst == is.Dst) &&
			(want.SrcPort == 0 || want.SrcPort == is.SrcPort) && (want.DstPort == 0 || want.DstPort == is.DstPort) && (want.ICMP == ICMP{} || want.ICMP == is.ICMP)
	}
	return c.Zone == connection.Zone && (c.Protocol == 0 || c.Protocol == connection.Protocol) &&
		fits(c.Original, connection.Original) && fits(c.Reply, connection.Reply)
}

// Bundles returns the number of applied transactions with at least one change.
func (f *Fake) Bundles() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.bundles
}

// Changes returns the number of flows, groups and meters that were added, replaced or deleted.
func (f *Fake) Changes() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changes
}

// NewTransaction implements Interface.
func (f *Fake) NewTransaction() *Transaction {
	return &Transaction{}
}

// Run implements Interface.
func (f *Fake) Run(ctx context.Context, tx *Transaction) error {
	if tx.err != nil {
		return tx.err
	}
	if len(tx.ops) == 0 {
		return nil
	}
	return f.apply(ctx, tx.Operations())
}

// Replace implements Interface.
func (f *Fake) Replace(ctx context.Context, want State) (Difference, error) {
	f.mu.Lock()
	tx, found, err := f.tables.compare(want)
	f.mu.Unlock()
	if err != nil {
		return found, err
	}
	if err := f.apply(ctx, tx.Operations()); err != nil {
		return Difference{}, err
	}
	return found, nil
}

// compare returns the changes that make the tables equal to the wanted state.
func (t fakeTables) compare(want State) (tx *Transaction, found Difference, err error) {
	all := &Transaction{}
	for _, m := range want.Meters {
		all.SetMeter(m)
	}
	for _, g := range want.Groups {
		all.SetGroup(g)
	}
	for i := range want.NumFlows() {
		all.Add(want.Flow(i))
	}
	if all.err != nil {
		return nil, found, all.err
	}
	foreign := t.clone()
	tx = &Transaction{}
	seen := map[any]bool{}
	for _, op := range all.ops {
		is, id := "", any(op.Key)
		switch op.Verb {
		case VerbAdd:
			is = t.texts[op.Key]
			delete(foreign.texts, op.Key)
		case VerbSetGroup:
			is, id = t.groups[op.Group.ID], op.number()
			delete(foreign.groups, op.Group.ID)
		case VerbSetMeter:
			is, id = t.meters[op.Meter.ID], op.number()
			delete(foreign.meters, op.Meter.ID)
		}
		if seen[id] {
			return nil, found, op.Refused(ReasonTwice)
		}
		seen[id] = true
		switch is {
		case op.Text():
			continue
		case "":
			found.Missing++
		default:
			found.Altered++
		}
		tx.push(op, nil)
	}
	for k := range foreign.texts {
		if want.Learned.Include(k.Table, t.flows[k].Cookie) {
			continue
		}
		found.Foreign++
		tx.Delete(t.flows[k])
	}
	for id := range foreign.groups {
		found.Foreign++
		tx.DeleteGroup(id)
	}
	for id := range foreign.meters {
		found.Foreign++
		tx.DeleteMeter(id)
	}
	return tx, found, tx.err
}

// Refused returns the error that identifies the operation.
func (op Operation) Refused(reason string) error {
	switch op.Verb {
	case VerbSetGroup:
		return &GroupError{ID: op.Group.ID, Group: op.Text(), Reason: reason}
	case VerbSetMeter:
		return &MeterError{ID: op.Meter.ID, Meter: op.Text(), Reason: reason}
	}
	return &FlowError{Flow: op.Text(), Key: op.Key, Reason: reason}
}

// apply applies all operations or none.
func (f *Fake) apply(ctx context.Context, ops []Operation) error {
	if f.BeforeBundle != nil {
		if err := f.BeforeBundle(ctx); err != nil {
			return err
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.answer(ctx); err != nil {
		return err
	}
	if f.bridge == nil {
		return &unavailableError{f.errNoBridge()} // the bridge's management socket does not exist
	}
	coming := map[numbered]bool{}
	for _, op := range ops {
		switch op.Verb {
		case VerbSetGroup, VerbSetMeter:
			if op.Verb == VerbSetGroup {
				if _, err := ParseGroup(op.Group.ID, op.Text()); err != nil {
					return err
				}
			}
			coming[op.number()] = true
		case VerbAdd:
			if reason := f.refuseFlow(coming, op.Flow); reason != "" {
				return op.Refused(reason)
			}
		}
	}
	before := f.changes
	for _, op := range ops {
		f.changes += f.tables.do(op)
		if op.Verb == VerbFlush {
			f.tracked = slices.DeleteFunc(f.tracked, op.Connections.match)
		}
	}
	if f.changes > before {
		f.bundles++
	}
	return nil
}

// numbered identifies a group or a meter.
type numbered struct {
	object string
	id     uint32
}

// number returns the group or meter of the operation.
func (op Operation) number() numbered {
	if op.Verb == VerbSetMeter {
		return numbered{"meter", op.Meter.ID}
	}
	return numbered{"group", op.Group.ID}
}

// do applies an operation and returns the number of changed flows, groups and meters.
func (t fakeTables) do(op Operation) int {
	before := len(t.flows) + len(t.groups) + len(t.meters)
	switch op.Verb {
	case VerbAdd:
		flow := *op.Flow
		t.flows[op.Key], t.texts[op.Key] = &flow, op.Text()
		return 1
	case VerbSetGroup:
		t.groups[op.Group.ID] = op.Text()
		return 1
	case VerbSetMeter:
		t.meters[op.Meter.ID], t.rates[op.Meter.ID] = op.Text(), op.Meter
		return 1
	case VerbDelete:
		delete(t.flows, op.Key)
		delete(t.texts, op.Key)
	case VerbDeleteGroup:
		delete(t.groups, op.Group.ID)
		t.deleteFlows(func(f *Flow) bool { return slices.Contains(numbersOf(f, "group"), op.Group.ID) })
	case VerbDeleteMeter:
		delete(t.meters, op.Meter.ID)
		delete(t.rates, op.Meter.ID)
		t.deleteFlows(func(f *Flow) bool { return slices.Contains(numbersOf(f, "meter"), op.Meter.ID) })
	}
	return before - len(t.flows) - len(t.groups) - len(t.meters)
}

func (t fakeTables) deleteFlows(which func(*Flow) bool) {
	for k, f := range t.flows {
		if which(f) {
			delete(t.flows, k)
			delete(t.texts, k)
		}
	}
}

// numbersOf returns the IDs of the groups or meters that the flow uses.
func numbersOf(f *Flow, object string) []uint32 {
	var numbers []uint32
	actions, err := ActionsText(f)
	if err != nil {
		return nil // no flow of the fake has such actions
	}
	for action := range strings.SplitSeq(actions, ",") {
		if name, arg, _ := strings.Cut(action, ":"); name == object {
			if n, err := strconv.ParseUint(arg, 10, 32); err == nil {
				numbers = append(numbers, uint32(n))
			}
		}
	}
	return numbers
}

// refuseFlow returns the reason for which the switch would reject the flow, or "".
func (f *Fake) refuseFlow(coming map[numbered]bool, flow *Flow) string {
	for _, n := range numbersOf(flow, "goto_table") {
		if int(n) <= flow.Table {
			return "actions are invalid with specified match (OFPBIC_BAD_TABLE_ID)"
		}
	}
	for _, n := range numbersOf(flow, "group") {
		if f.tables.groups[n] == "" && !coming[numbered{"group", n}] {
			return "OFPBAC_BAD_OUT_GROUP"
		}
	}
	for _, n := range numbersOf(flow, "meter") {
		if f.tables.meters[n] == "" && !coming[numbered{"meter", n}] {
			return "OFPMMFC_INVALID_METER"
		}
	}
	if f.RefuseFlow != nil {
		return f.RefuseFlow(flow)
	}
	return ""
}
