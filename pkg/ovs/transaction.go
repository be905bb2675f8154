package ovs

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// A Transaction collects changes that Interface.Run applies. Whatever order they are collected in, they are applied in phases:
//
//  1. meters are set
//  2. in one atomic bundle: groups are set, flows are added, deleted and purged in their order, groups are deleted
//  3. meters are deleted
//  4. connections are forgotten
//
// so that a flow never refers to what is not there, and no connection is judged by flows that have gone. The first error is kept
// and returned by Run and Err, so that callers need not check each operation. It is not safe for concurrent use.
type Transaction struct {
	ops []operation
	err error
}

// An operation is one change.
type operation struct {
	phase       phase
	verb        verb
	text        string // what follows the verb in the script
	flow        *Flow  // of flows
	key         Key    // likewise
	group       Group  // with its number alone in a deletion
	meter       Meter  // likewise
	learned     Learned
	connections Connections
}

// phase is what an operation does, in the order in which that is done.
type phase int

const (
	setMeter phase = iota
	setGroup
	changeFlow // additions and deletions of flows keep their order
	deleteGroup
	deleteMeter
	forget
)

// verb is how an operation's line in the script begins.
type verb string

const (
	verbAdd         verb = "flow add "
	verbDelete      verb = "flow delete_strict "
	verbPurge       verb = "flow delete "
	verbSetGroup    verb = "group add_or_mod "
	verbDeleteGroup verb = "group delete "
	verbSetMeter    verb = "#ovs-ofctl add-meter br0 "
	verbDeleteMeter verb = "#ovs-ofctl del-meters br0 "
	verbForget      verb = "#ovs-ofctl ct-flush br0 "
)

// Add adds the flow. A flow of the same key is overwritten.
func (tx *Transaction) Add(f *Flow) {
	key, text, err := flowText(f)
	tx.push(operation{phase: changeFlow, verb: verbAdd, text: text, flow: f, key: key}, err)
}

// Delete removes the flow with f's key; the cookie, actions and time-outs of f do not matter. A flow that is not there
// is no error.
func (tx *Transaction) Delete(f *Flow) {
	key, err := FlowKey(f)
	tx.push(operation{phase: changeFlow, verb: verbDelete, text: key.String(), flow: f, key: key}, err)
}

// Purge removes all flows of the table with the cookie.
func (tx *Transaction) Purge(l Learned) {
	var err error
	if l.Table < 0 || l.Table > maxTable {
		err = fmt.Errorf("purge: table %d is not in 0 to %d", l.Table, maxTable)
	}
	tx.push(operation{phase: changeFlow, verb: verbPurge, text: fmt.Sprintf("table=%d,cookie=%#x/-1", l.Table, l.Cookie), learned: l}, err)
}

// SetGroup adds the group, or makes the one of its number so.
func (tx *Transaction) SetGroup(g Group) {
	text, err := GroupText(g)
	tx.push(operation{phase: setGroup, verb: verbSetGroup, text: text, group: g}, err)
}

// DeleteGroup removes the group. Open vSwitch removes the flows that use it too. A group that is not there is no error.
func (tx *Transaction) DeleteGroup(id uint32) {
	_, err := GroupText(Group{ID: id})
	tx.push(operation{phase: deleteGroup, verb: verbDeleteGroup, text: fmt.Sprintf("group_id=%d", id), group: Group{ID: id}}, err)
}

// SetMeter adds the meter, or makes the one of its number so.
func (tx *Transaction) SetMeter(m Meter) {
	text, err := MeterText(m)
	tx.push(operation{phase: setMeter, verb: verbSetMeter, text: text, meter: m}, err)
}

// DeleteMeter removes the meter. Open vSwitch removes the flows that use it too. A meter that is not there is no error.
func (tx *Transaction) DeleteMeter(id uint32) {
	var err error
	if id < 1 || id > maxMeter {
		err = fmt.Errorf("meter=%d: the number must be 1 to %d", id, uint32(maxMeter))
	}
	tx.push(operation{phase: deleteMeter, verb: verbDeleteMeter, text: fmt.Sprintf("meter=%d", id), meter: Meter{ID: id}}, err)
}

// Forget makes the switch forget the connections.
func (tx *Transaction) Forget(c Connections) {
	tx.push(operation{phase: forget, verb: verbForget, text: c.String(), connections: c}, c.validate())
}

func (tx *Transaction) push(op operation, err error) {
	if tx.err == nil {
		tx.err = err
	}
	if tx.err == nil {
		tx.ops = append(tx.ops, op)
	}
}

// Err returns the first error of the operations.
func (tx *Transaction) Err() error {
	return tx.err
}

// NumOperations returns how many changes the transaction holds.
func (tx *Transaction) NumOperations() int {
	return len(tx.ops)
}

// inPhases returns the operations in the order in which they are applied.
func (tx *Transaction) inPhases() []operation {
	if slices.IsSortedFunc(tx.ops, comparePhases) {
		return tx.ops
	}
	ops := slices.Clone(tx.ops)
	slices.SortStableFunc(ops, comparePhases)
	return ops
}

func comparePhases(a, b operation) int { return cmp.Compare(a.phase, b.phase) }

// String returns the transaction as a script that `ovs-ofctl -O OpenFlow14 bundle br0 FILE` replays. What a bundle can't hold is a comment
// that names the command: the first ones are for before, the last ones for after.
func (tx *Transaction) String() string {
	var b strings.Builder
	for _, op := range tx.inPhases() {
		b.WriteString(string(op.verb))
		b.WriteString(op.text)
		b.WriteByte('\n')
	}
	return b.String()
}

const reasonTwice = "it is wanted twice; the second would overwrite the first"
