package ovs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// Run implements Interface.
func (e *Exec) Run(ctx context.Context, tx *Transaction) error {
	if tx.err != nil {
		return tx.err
	}
	var bundle Transaction
	ops := tx.inPhases()
	for _, op := range ops {
		switch {
		case op.phase == setMeter:
			if err := e.setMeter(ctx, op); err != nil {
				return err
			}
		case op.phase < deleteMeter:
			bundle.push(op, nil)
		}
	}
	if len(bundle.ops) > 0 {
		if err := explain(e.ofctl(ctx, e.timeout, bundle.String(), "bundle"), bundle.ops); err != nil {
			return err
		}
	}
	for _, op := range ops {
		var err error
		switch op.phase {
		case deleteMeter:
			_, err = e.command(ctx, "del-meters", op.text)
		case forget:
			_, err = e.command(ctx, "ct-flush", op.connections.args()...)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// ListConnections implements Interface.
func (e *Exec) ListConnections(ctx context.Context, zones Zones, each func(Connection)) error {
	if err := zones.validate(); err != nil {
		return err
	}
	socket := filepath.Join(e.runDir, "ovs-vswitchd.ctl")
	out, err := run(ctx, e.timeout, socket, nil, "ovs-appctl", timeoutFlag(e.timeout), "--target="+socket, "dpctl/dump-conntrack")
	for line := range bytes.Lines(out) {
		c, ok, err := parseConnection(bytes.TrimSpace(line), zones)
		if err != nil {
			return err
		}
		if ok {
			each(c)
		}
	}
	return err
}

func (e *Exec) setMeter(ctx context.Context, op operation) error {
	command := "add-meter"
	out, err := e.command(ctx, "dump-meters")
	if err != nil {
		return err
	}
	if strings.Contains(string(out), fmt.Sprintf("meter=%d ", op.meter.ID)) {
		command = "mod-meter"
	}
	_, err = e.command(ctx, command, op.text)
	return err
}

// Replace implements Interface. It deletes what is not wanted, by number and by ovs-ofctl's own comparison of flows, and sets all that is;
// what the difference was it does not know.
func (e *Exec) Replace(ctx context.Context, want State) (Difference, error) {
	var tx Transaction
	for _, m := range want.Meters {
		tx.SetMeter(m)
	}
	for _, g := range want.Groups {
		tx.SetGroup(g)
	}
	numbers := map[string]bool{}
	for _, op := range tx.ops {
		object, _, _ := strings.Cut(op.text, ",")
		if numbers[object] {
			return Difference{}, op.refused(reasonTwice)
		}
		numbers[object] = true
	}
	flows, script, err := wantedFlows(want.Flows)
	if err == nil && len(tx.ops) > 0 || tx.err != nil {
		err = e.Run(ctx, &tx)
	}
	if err != nil {
		return Difference{}, err
	}
	if err := e.ofctl(ctx, replaceTimeout, script, "--bundle", "replace-flows"); err != nil {
		return Difference{}, explain(err, flows)
	}
	return Difference{}, e.deleteOthers(ctx, numbers)
}

// wantedFlows returns the flows as operations and as a file for ovs-ofctl.
func wantedFlows(flows []*Flow) (ops []operation, script string, err error) {
	var tx Transaction
	var b strings.Builder
	seen := map[Key]bool{}
	for _, f := range flows {
		tx.Add(f)
		if tx.err != nil {
			return nil, "", tx.err
		}
		op := tx.ops[len(tx.ops)-1]
		if seen[op.key] {
			return nil, "", op.refused(reasonTwice)
		}
		seen[op.key] = true
		b.WriteString(op.text + "\n")
	}
	return tx.ops, b.String(), nil
}

// deleteOthers deletes the groups and meters that are not among the numbers.
func (e *Exec) deleteOthers(ctx context.Context, numbers map[string]bool) error {
	for dump, deletion := range map[string]string{"dump-groups": "del-groups", "dump-meters": "del-meters"} {
		out, err := e.command(ctx, dump)
		if err != nil {
			return err
		}
		for _, object := range regexp.MustCompile(`(?m)^ *((?:group_id|meter)=\d+)`).FindAllStringSubmatch(string(out), -1) {
			if numbers[object[1]] {
				continue
			}
			if _, err := e.command(ctx, deletion, object[1]); err != nil {
				return err
			}
		}
	}
	return nil
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
			return op.refused(reason)
		}
		if op, reason, ok := refusedBySwitch(line, ops); ok {
			return op.refused(reason)
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
	if reason, request, ok := strings.Cut(rest, " for: OFPT_GROUP_MOD "); ok {
		return refusedGroup(reason, request, ops)
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

func refusedGroup(reason, request string, ops []operation) (operation, string, bool) {
	for _, op := range ops {
		if op.verb == verbSetGroup && strings.Contains(request, fmt.Sprintf(" group_id=%d,", op.group.ID)) {
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
