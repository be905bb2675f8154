package ovs

import (
	"context"
	"errors"
	"strconv"
	"strings"
)

// Run implements Interface.
func (e *Exec) Run(ctx context.Context, tx *Transaction) error {
	if tx.err != nil {
		return tx.err
	}
	if len(tx.ops) == 0 {
		return nil
	}
	err := e.ofctl(ctx, e.timeout, tx.String(), "--bundle", "add-flows")
	return explain(err, tx.ops)
}

// Replace implements Interface. ovs-ofctl dumps the flows, compares and sends the difference; it takes about 0.3 s for
// 50,000 flows.
func (e *Exec) Replace(ctx context.Context, flows []*Flow) error {
	wanted, err := wantedOnce(flows)
	if err != nil {
		return err
	}
	var script strings.Builder
	for _, op := range wanted {
		script.WriteString(op.text)
		script.WriteByte('\n')
	}
	err = e.ofctl(ctx, replaceTimeout, script.String(), "--bundle", "replace-flows")
	return explain(err, wanted)
}

// explain turns a failure of ovs-ofctl into a FlowError when the program says which flow it was.
func explain(err error, ops []operation) error {
	var failed *programError
	if err == nil || IsUnavailable(err) || !errors.As(err, &failed) {
		return err
	}
	for line := range strings.Lines(failed.stderr) {
		line = strings.TrimSpace(line)
		if op, reason, ok := refusedByProgram(line, ops); ok {
			return &FlowError{Flow: op.text, Key: op.key, Reason: reason}
		}
		if op, reason, ok := refusedBySwitch(line, ops); ok {
			return &FlowError{Flow: op.text, Key: op.key, Reason: reason}
		}
	}
	return err
}

// refusedByProgram reads a line such as
//
//	ovs-ofctl: -:2: unknown keyword foo
//
// which names the line of the script that ovs-ofctl could not parse.
func refusedByProgram(line string, ops []operation) (operation, string, bool) {
	rest, ok := strings.CutPrefix(line, "ovs-ofctl: -:")
	if !ok {
		return operation{}, "", false
	}
	number, reason, ok := strings.Cut(rest, ": ")
	n, err := strconv.Atoi(number)
	if !ok || err != nil || n < 1 || n > len(ops) {
		return operation{}, "", false
	}
	return ops[n-1], reason, true
}

// refusedBySwitch reads a line such as
//
//	Error OFPBAC_BAD_OUT_GROUP for: OFPT_FLOW_MOD (OF1.4) (xid=0x7): ADD table:3 priority=6,ip cookie:0x5 actions=group:9
//
// with which ovs-ofctl prints the request that the switch refused.
func refusedBySwitch(line string, ops []operation) (operation, string, bool) {
	rest, ok := strings.CutPrefix(line, "Error ")
	if !ok {
		return operation{}, "", false
	}
	reason, request, ok := strings.Cut(rest, " for: OFPT_FLOW_MOD ")
	if !ok {
		return operation{}, "", false
	}
	_, mod, ok := strings.Cut(request, "): ") // behind the xid
	if !ok {
		return operation{}, "", false
	}
	key, ok := parseFlowMod(mod)
	if !ok {
		return operation{}, "", false
	}
	wanted := verbDelete
	if strings.HasPrefix(mod, "ADD ") {
		wanted = verbAdd
	}
	for _, op := range ops {
		if op.verb == wanted && op.key == key {
			return op, reason, true
		}
	}
	return operation{}, "", false
}

// parseFlowMod reads the key from the text of a flow_mod: a command, the table unless it is 0, the priority unless it is
// 32768 with the match, then name:value pairs and the actions.
func parseFlowMod(mod string) (Key, bool) {
	const defaultPriority = 32768 // OFP_DEFAULT_PRIORITY
	k := Key{Priority: defaultPriority}
	words := strings.Fields(mod)
	if len(words) == 0 {
		return k, false
	}
	for _, w := range words[1:] {
		if t, ok := strings.CutPrefix(w, "table:"); ok {
			n, err := strconv.Atoi(t)
			if err != nil {
				return k, false
			}
			k.Table = n
			continue
		}
		if strings.HasPrefix(w, "actions=") || isFlowModPair(w) {
			break
		}
		match := w
		if p, ok := strings.CutPrefix(w, "priority="); ok {
			number, rest, _ := strings.Cut(p, ",")
			n, err := strconv.Atoi(number)
			if err != nil {
				return k, false
			}
			k.Priority, match = n, rest
		}
		k.Match = match
		break
	}
	return k, true
}

// isFlowModPair reports whether the word is one of the name:value pairs behind the match, or the flags.
func isFlowModPair(w string) bool {
	for _, name := range []string{"cookie", "idle", "hard", "pri", "importance", "buf", "out_port", "out_group"} {
		if strings.HasPrefix(w, name+":") {
			return true
		}
	}
	return false
}
