package ovs

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Transaction collects changes for Interface.Run, which applies them in phases, whatever the order in which they were collected:
//
//  1. meters are set
//  2. in one atomic bundle: groups are set, flows are added, deleted and purged in their order, groups are deleted
//  3. meters are deleted
//  4. connections are flushed
//
// A flow therefore never refers to a group or meter that does not exist, and no connection is committed again by deleted flows. The first
// error is retained and returned by Run and Err, so that callers need not check each operation. A Transaction is not safe for concurrent use.
type Transaction struct {
	ops []Operation
	err error
}

// Operation is one change of a transaction.
type Operation struct {
	phase       phase
	Verb        Verb
	text        string // of Text; "" if it follows from Flow and Key
	Flow        *Flow  // of an addition of a flow
	Key         Key    // of an operation on a flow
	Group       Group  // in a deletion only the ID
	Meter       Meter  // in a deletion only the ID
	Connections Connections
}

// phase is the type of an operation, in the order of application.
type phase int

const (
	setMeter phase = iota
	setGroup
	changeFlow // additions and deletions of flows retain their order
	deleteGroup
	deleteMeter
	flush
)

// Verb is the beginning of an operation's line in the script.
type Verb string

// The verbs.
const (
	VerbAdd         Verb = "flow add "
	VerbDelete      Verb = "flow delete_strict "
	VerbSetGroup    Verb = "group add_or_mod "
	VerbDeleteGroup Verb = "group delete "
	VerbSetMeter    Verb = "#ovs-ofctl add-meter br0 "
	VerbDeleteMeter Verb = "#ovs-ofctl del-meters br0 "
	VerbFlush       Verb = "#ovs-ofctl ct-flush br0 "
)

// Add adds the flow. It replaces a flow with the same key.
func (tx *Transaction) Add(f *Flow) {
	key, err := FlowKey(f)
	if err == nil {
		_, err = ActionsText(f)
	}
	tx.push(Operation{phase: changeFlow, Verb: VerbAdd, Flow: f, Key: key}, err)
}

// AddAt is Add, in less time, for a flow whose key and actions FlowKey and ActionsText have returned.
func (tx *Transaction) AddAt(key Key, f *Flow) {
	tx.push(Operation{phase: changeFlow, Verb: VerbAdd, Flow: f, Key: key}, nil)
}

// Delete removes the flow with f's key; cookie, actions and timeouts of f are ignored. It is not an error if the flow does not exist.
func (tx *Transaction) Delete(f *Flow) {
	key, err := FlowKey(f)
	tx.push(Operation{phase: changeFlow, Verb: VerbDelete, Key: key}, err)
}

// DeleteAt is Delete for a key that FlowKey has returned.
func (tx *Transaction) DeleteAt(key Key) {
	tx.push(Operation{phase: changeFlow, Verb: VerbDelete, Key: key}, nil)
}

// SetGroup adds the group, or replaces the group with the same ID.
func (tx *Transaction) SetGroup(g Group) {
	text, err := GroupText(g)
	tx.push(Operation{phase: setGroup, Verb: VerbSetGroup, text: text, Group: g}, err)
}

// DeleteGroup removes the group, with which Open vSwitch removes the flows that use it. It is not an error if the group does not exist.
func (tx *Transaction) DeleteGroup(id uint32) {
	_, err := GroupText(Group{ID: id})
	tx.push(Operation{phase: deleteGroup, Verb: VerbDeleteGroup, text: fmt.Sprintf("group_id=%d", id), Group: Group{ID: id}}, err)
}

// SetMeter adds the meter, or replaces the meter with the same ID.
func (tx *Transaction) SetMeter(m Meter) {
	text, err := MeterText(m)
	tx.push(Operation{phase: setMeter, Verb: VerbSetMeter, text: text, Meter: m}, err)
}

// DeleteMeter removes the meter, with which Open vSwitch removes the flows that use it. It is not an error if the meter does not exist.
func (tx *Transaction) DeleteMeter(id uint32) {
	var err error
	if id < 1 || id > maxMeter {
		err = fmt.Errorf("meter=%d: the ID must be 1 to %d", id, uint32(maxMeter))
	}
	tx.push(Operation{phase: deleteMeter, Verb: VerbDeleteMeter, text: fmt.Sprintf("meter=%d", id), Meter: Meter{ID: id}}, err)
}

// Flush removes the connections from conntrack.
func (tx *Transaction) Flush(c Connections) {
	tx.push(Operation{phase: flush, Verb: VerbFlush, text: c.String(), Connections: c}, c.validate())
}

func (tx *Transaction) push(op Operation, err error) {
	if tx.err == nil {
		tx.err = err
	}
	if tx.err == nil {
		tx.ops = append(tx.ops, op)
	}
}

// Text returns what follows the verb in the script.
func (op Operation) Text() string {
	switch op.Verb {
	case VerbAdd:
		rest, _ := suffixText(op.Flow) // the transaction has only valid flows
		return op.Key.String() + rest
	case VerbDelete:
		return op.Key.String()
	}
	return op.text
}

// Err returns the first error of the operations.
func (tx *Transaction) Err() error {
	return tx.err
}

// NumOperations returns the number of changes.
func (tx *Transaction) NumOperations() int {
	return len(tx.ops)
}

// Operations returns the operations in the order of application.
func (tx *Transaction) Operations() []Operation {
	if slices.IsSortedFunc(tx.ops, comparePhases) {
		return tx.ops
	}
	ops := slices.Clone(tx.ops)
	slices.SortStableFunc(ops, comparePhases)
	return ops
}

func comparePhases(a, b Operation) int { return cmp.Compare(a.phase, b.phase) }

// String returns the transaction as a script for `ovs-ofctl -O OpenFlow14 bundle br0 FILE`. Changes that a bundle cannot contain are
// comments with the command to run: before the bundle if they are first, after it if they are last.
func (tx *Transaction) String() string {
	var b strings.Builder
	for _, op := range tx.Operations() {
		b.WriteString(string(op.Verb))
		b.WriteString(op.Text())
		b.WriteByte('\n')
	}
	return b.String()
}

// ReasonTwice is the reason of errors about a flow, group or meter of which Interface.Replace gets two with the same key.
const ReasonTwice = "specified twice; the second would replace the first"
