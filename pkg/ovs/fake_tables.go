package ovs

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// fakeTables are what OpenFlow puts on the fake bridge.
type fakeTables struct {
	flows  map[Key]*Flow
	texts  map[Key]string
	groups map[uint32]string
	meters map[uint32]string
}

func newFakeTables() fakeTables {
	return fakeTables{flows: map[Key]*Flow{}, texts: map[Key]string{}, groups: map[uint32]string{}, meters: map[uint32]string{}}
}

func (t fakeTables) clone() fakeTables {
	return fakeTables{flows: maps.Clone(t.flows), texts: maps.Clone(t.texts), groups: maps.Clone(t.groups), meters: maps.Clone(t.meters)}
}

// Restart is a restart of vswitchd: flows, groups and meters are gone, OVSDB is not.
func (f *Fake) Restart() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tables = newFakeTables()
}

// Flows returns the texts of the flows on the switch, ordered by table, falling priority and match.
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

// Groups returns the texts of the groups on the switch, ordered by number.
func (f *Fake) Groups() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return inOrder(f.tables.groups)
}

// Meters returns the texts of the meters on the switch, ordered by number.
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

// Connect lets the switch track a connection.
func (f *Fake) Connect(c Connections) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tracked = append(f.tracked, c)
}

// Tracked returns the connections that Connect made and nothing has made the switch forget.
func (f *Fake) Tracked() []Connections {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.tracked)
}

// ListConnections implements Interface.
func (f *Fake) ListConnections(ctx context.Context, zones Zones, each func(Connection)) error {
	if err := zones.validate(); err != nil {
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
		if zones.Contain(c.Zone) {
			each(Connection{Zone: c.Zone, Protocol: c.Protocol, Original: c.Original, Reply: c.Reply})
		}
	}
	return nil
}

// match reports whether c stands for the connection.
func (c Connections) match(connection Connections) bool {
	fits := func(want, is Tuple) bool {
		return (!want.Src.IsValid() || want.Src == is.Src) && (!want.Dst.IsValid() || want.Dst == is.Dst) &&
			(want.SrcPort == 0 || want.SrcPort == is.SrcPort) && (want.DstPort == 0 || want.DstPort == is.DstPort) && (want.ICMP == ICMP{} || want.ICMP == is.ICMP)
	}
	return c.Zone == connection.Zone && (c.Protocol == 0 || c.Protocol == connection.Protocol) &&
		fits(c.Original, connection.Original) && fits(c.Reply, connection.Reply)
}

// Bundles returns how many transactions with at least one change were applied.
func (f *Fake) Bundles() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.bundles
}

// Changes returns how many flows, groups and meters were added, rewritten or deleted so far.
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
	return f.apply(ctx, tx.inPhases())
}

// Replace implements Interface.
func (f *Fake) Replace(ctx context.Context, want State) (Difference, error) {
	f.mu.Lock()
	tx, found, err := f.tables.compare(want)
	f.mu.Unlock()
	if err != nil {
		return found, err
	}
	if err := f.apply(ctx, tx.inPhases()); err != nil {
		return Difference{}, err
	}
	return found, nil
}

// compare returns what makes the tables equal to the wanted state.
func (t fakeTables) compare(want State) (tx *Transaction, found Difference, err error) {
	all := &Transaction{}
	for _, m := range want.Meters {
		all.SetMeter(m)
	}
	for _, g := range want.Groups {
		all.SetGroup(g)
	}
	for _, flow := range want.Flows {
		all.Add(flow)
	}
	if all.err != nil {
		return nil, found, all.err
	}
	foreign := t.clone()
	tx = &Transaction{}
	seen := map[any]bool{}
	for _, op := range all.ops {
		is, id := "", any(op.key)
		switch op.verb {
		case verbAdd:
			is = t.texts[op.key]
			delete(foreign.texts, op.key)
		case verbSetGroup:
			is, id = t.groups[op.group.ID], op.number()
			delete(foreign.groups, op.group.ID)
		case verbSetMeter:
			is, id = t.meters[op.meter.ID], op.number()
			delete(foreign.meters, op.meter.ID)
		}
		if seen[id] {
			return nil, found, op.refused(reasonTwice)
		}
		seen[id] = true
		switch is {
		case op.text:
			continue
		case "":
			found.Missing++
		default:
			found.Altered++
		}
		tx.push(op, nil)
	}
	for k := range foreign.texts {
		flow := t.flows[k]
		if !slices.Contains(want.Learned, Learned{k.Table, flow.Cookie}) {
			found.Foreign++
			tx.Delete(flow)
		}
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

// refused is the error that names the operation.
func (op operation) refused(reason string) error {
	switch op.verb {
	case verbSetGroup:
		return &GroupError{ID: op.group.ID, Group: op.text, Reason: reason}
	case verbSetMeter:
		return &MeterError{ID: op.meter.ID, Meter: op.text, Reason: reason}
	}
	return &FlowError{Flow: op.text, Key: op.key, Reason: reason}
}

// apply applies all operations or none.
func (f *Fake) apply(ctx context.Context, ops []operation) error {
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
		return &unavailableError{f.errNoBridge()} // its socket does not exist
	}
	coming := map[numbered]bool{}
	for _, op := range ops {
		switch op.verb {
		case verbSetGroup, verbSetMeter:
			if op.verb == verbSetGroup {
				if _, err := parseGroup(op.group.ID, op.text); err != nil {
					return err
				}
			}
			coming[op.number()] = true
		case verbAdd:
			if reason := f.refuseFlow(coming, op.flow); reason != "" {
				return op.refused(reason)
			}
		}
	}
	before := f.changes
	for _, op := range ops {
		f.changes += f.tables.do(op)
		if op.verb == verbForget {
			f.tracked = slices.DeleteFunc(f.tracked, op.connections.match)
		}
	}
	if f.changes > before {
		f.bundles++
	}
	return nil
}

// numbered is a group or a meter.
type numbered struct {
	object string
	id     uint32
}

// number is that of the operation's group or meter.
func (op operation) number() numbered {
	if op.verb == verbSetMeter {
		return numbered{"meter", op.meter.ID}
	}
	return numbered{"group", op.group.ID}
}

// do applies an operation and returns how much that changed.
func (t fakeTables) do(op operation) int {
	before := len(t.flows) + len(t.groups) + len(t.meters)
	switch op.verb {
	case verbAdd:
		flow := *op.flow
		t.flows[op.key], t.texts[op.key] = &flow, op.text
		return 1
	case verbSetGroup:
		t.groups[op.group.ID] = op.text
		return 1
	case verbSetMeter:
		t.meters[op.meter.ID] = op.text
		return 1
	case verbDelete:
		delete(t.flows, op.key)
		delete(t.texts, op.key)
	case verbPurge:
		t.deleteFlows(func(k Key, f *Flow) bool { return k.Table == op.learned.Table && f.Cookie == op.learned.Cookie })
	case verbDeleteGroup:
		delete(t.groups, op.group.ID)
		t.deleteFlows(func(_ Key, f *Flow) bool { return slices.Contains(numbersOf(f, "group"), op.group.ID) })
	case verbDeleteMeter:
		delete(t.meters, op.meter.ID)
		t.deleteFlows(func(_ Key, f *Flow) bool { return slices.Contains(numbersOf(f, "meter"), op.meter.ID) })
	}
	return before - len(t.flows) - len(t.groups) - len(t.meters)
}

func (t fakeTables) deleteFlows(which func(Key, *Flow) bool) {
	for k, f := range t.flows {
		if which(k, f) {
			delete(t.flows, k)
			delete(t.texts, k)
		}
	}
}

// numbersOf returns the groups or meters that the flow uses.
func numbersOf(f *Flow, object string) []uint32 {
	var numbers []uint32
	for _, a := range f.Actions {
		b, err := a.MarshalText()
		if err != nil {
			continue // no such flow is on the switch
		}
		if name, arg, _ := strings.Cut(string(b), ":"); name == object {
			if n, err := strconv.ParseUint(arg, 10, 32); err == nil {
				numbers = append(numbers, uint32(n))
			}
		}
	}
	return numbers
}

// refuseFlow returns the switch's reason not to take the flow, "" if it has none.
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
