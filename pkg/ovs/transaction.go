package ovs

import (
	"strings"
)

// A Transaction collects changes that Interface.Run applies in one bundle, in their order. The first error is kept and
// returned by Run and Err, so that callers need not check each operation. It is not safe for concurrent use.
type Transaction struct {
	ops []operation
	err error
}

// An operation is one change. Groups and meters join it as kinds of their own when features need them.
type operation struct {
	verb verb
	flow *Flow
	key  Key
	text string // what follows the verb in the script
}

// verb is an operation's word in the script.
type verb string

const (
	verbAdd    verb = "add"
	verbDelete verb = "delete_strict"
)

// Add adds the flow. A flow of the same key is overwritten.
func (tx *Transaction) Add(f *Flow) {
	key, text, err := flowText(f)
	tx.push(operation{verb: verbAdd, flow: f, key: key, text: text}, err)
}

// Delete removes the flow with f's key; the cookie, actions and time-outs of f do not matter. A flow that is not there
// is no error.
func (tx *Transaction) Delete(f *Flow) {
	key, err := FlowKey(f)
	tx.push(operation{verb: verbDelete, flow: f, key: key, text: key.String()}, err)
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

// String returns the transaction as a script that `ovs-ofctl -O OpenFlow14 --bundle add-flows br0 FILE` replays.
func (tx *Transaction) String() string {
	var b strings.Builder
	for _, op := range tx.ops {
		b.WriteString(string(op.verb))
		b.WriteByte(' ')
		b.WriteString(op.text)
		b.WriteByte('\n')
	}
	return b.String()
}

const reasonTwice = "it is wanted twice; the second would overwrite the first"

// wantedOnce turns the flows of a replacement into additions. Two flows of one key are an error: the second would overwrite
// the first.
func wantedOnce(flows []*Flow) ([]operation, error) {
	tx := Transaction{ops: make([]operation, 0, len(flows))}
	seen := make(map[Key]bool, len(flows))
	for _, f := range flows {
		tx.Add(f)
		if tx.err != nil {
			return nil, tx.err
		}
		op := tx.ops[len(tx.ops)-1]
		if seen[op.key] {
			return nil, &FlowError{Flow: op.text, Key: op.key, Reason: reasonTwice}
		}
		seen[op.key] = true
	}
	return tx.ops, nil
}
