package native

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/test/ovstest/flowmod"
)

// Run implements Interface.
func (e *Exec) Run(ctx context.Context, tx *ovs.Transaction) error {
	if tx.Err() != nil {
		return tx.Err()
	}
	var bundle []ovs.Operation
	var script strings.Builder
	ops := tx.Operations()
	for _, op := range ops {
		switch op.Verb {
		case ovs.VerbSetMeter:
			if err := e.setMeter(ctx, op); err != nil {
				return err
			}
		case ovs.VerbAdd, ovs.VerbDelete, ovs.VerbSetGroup, ovs.VerbDeleteGroup:
			bundle = append(bundle, op)
			script.WriteString(string(op.Verb) + op.Text() + "\n")
		}
	}
	if len(bundle) > 0 {
		if err := explain(e.ofctl(ctx, e.timeout, script.String(), "bundle"), bundle); err != nil {
			return err
		}
	}
	for _, op := range ops {
		var err error
		switch op.Verb {
		case ovs.VerbDeleteMeter:
			_, err = e.command(ctx, "del-meters", op.Text())
		case ovs.VerbFlush:
			_, err = e.command(ctx, "ct-flush", op.Connections.Args()...)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// AwaitDatapath implements Interface.
func (e *Exec) AwaitDatapath(ctx context.Context) error {
	socket := filepath.Join(e.runDir, "ovs-vswitchd.ctl")
	_, err := run(ctx, e.timeout, socket, nil, "ovs-appctl", timeoutFlag(e.timeout), "--target="+socket, "revalidator/wait")
	return err
}

// AwaitEvents implements Interface. Exec has no events.
func (e *Exec) AwaitEvents(ctx context.Context) error { return ctx.Err() }

// Inject implements Interface.
func (e *Exec) Inject(ctx context.Context, inPort int, packet []byte) error {
	if err := ovs.ValidateInjection(inPort, packet); err != nil {
		return err
	}
	_, err := e.command(ctx, "packet-out", fmt.Sprintf("in_port=%d packet=%x actions=table", inPort, packet))
	return err
}

// ListConnections implements Interface.
func (e *Exec) ListConnections(ctx context.Context, zones ovs.Zones, each func(ovs.Connection)) error {
	if err := zones.Validate(); err != nil {
		return err
	}
	socket := filepath.Join(e.runDir, "ovs-vswitchd.ctl")
	out, err := run(ctx, e.timeout, socket, nil, "ovs-appctl", timeoutFlag(e.timeout), "--target="+socket, "dpctl/dump-conntrack")
	for line := range bytes.Lines(out) {
		c, ok, err := ovs.ParseConnection(bytes.TrimSpace(line), ovs.DatapathNetdev, zones)
		if err != nil {
			return err
		}
		if ok {
			each(c)
		}
	}
	return err
}

func (e *Exec) setMeter(ctx context.Context, op ovs.Operation) error {
	command := "add-meter"
	out, err := e.command(ctx, "dump-meters")
	if err != nil {
		return err
	}
	if strings.Contains(string(out), fmt.Sprintf("meter=%d ", op.Meter.ID)) {
		command = "mod-meter"
	}
	_, err = e.command(ctx, command, op.Text())
	return err
}

// Replace implements Interface. It deletes unwanted groups and meters by ID, replaces flows with ovs-ofctl, and sets all wanted groups and
// meters. The difference that it returns is empty.
func (e *Exec) Replace(ctx context.Context, want ovs.State) (ovs.Difference, error) {
	var tx ovs.Transaction
	for _, m := range want.Meters {
		tx.SetMeter(m)
	}
	for _, g := range want.Groups {
		tx.SetGroup(g)
	}
	numbers := map[string]bool{}
	for _, op := range tx.Operations() {
		object, _, _ := strings.Cut(op.Text(), ",")
		if numbers[object] {
			return ovs.Difference{}, op.Refused(ovs.ReasonTwice)
		}
		numbers[object] = true
	}
	flows, script, err := wantedFlows(want)
	if err == nil && tx.NumOperations() > 0 || tx.Err() != nil {
		err = e.Run(ctx, &tx)
	}
	if err != nil {
		return ovs.Difference{}, err
	}
	if err := e.ofctl(ctx, replaceTimeout, script, "--bundle", "replace-flows"); err != nil {
		return ovs.Difference{}, explain(err, flows)
	}
	return ovs.Difference{}, e.deleteOthers(ctx, numbers)
}

// wantedFlows returns the flows as operations and as the text of a file for ovs-ofctl.
func wantedFlows(want ovs.State) (ops []ovs.Operation, script string, err error) {
	var b strings.Builder
	seen := map[ovs.Key]bool{}
	for i := range want.NumFlows() {
		var tx ovs.Transaction
		tx.Add(want.Flow(i))
		if tx.Err() != nil {
			return nil, "", tx.Err()
		}
		op := tx.Operations()[0]
		if seen[op.Key] {
			return nil, "", op.Refused(ovs.ReasonTwice)
		}
		seen[op.Key] = true
		b.WriteString(op.Text() + "\n")
		ops = append(ops, op)
	}
	return ops, b.String(), nil
}

// deleteOthers deletes the groups and meters whose IDs are not in numbers.
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

// explain converts a failure of ovs-ofctl to the error of a flow, group or meter if the output identifies it.
func explain(err error, ops []ovs.Operation) error {
	var failed *programError
	if err == nil || ovs.IsUnavailable(err) || !errors.As(err, &failed) {
		return err
	}
	for line := range strings.Lines(failed.stderr) {
		line = strings.TrimSpace(line)
		if op, reason, ok := rejectedByProgram(line, ops); ok {
			return op.Refused(reason)
		}
		if op, reason, ok := rejectedBySwitch(line, ops); ok {
			return op.Refused(reason)
		}
	}
	return err
}

// rejectedByProgram parses a line such as
//
//	ovs-ofctl: -:2: unknown keyword foo
//
// which has the number of the line of the script that ovs-ofctl could not parse.
func rejectedByProgram(line string, ops []ovs.Operation) (ovs.Operation, string, bool) {
	rest, ok := strings.CutPrefix(line, "ovs-ofctl: -:")
	if !ok {
		return ovs.Operation{}, "", false
	}
	number, reason, ok := strings.Cut(rest, ": ")
	n, err := strconv.Atoi(number)
	if !ok || err != nil || n < 1 || n > len(ops) {
		return ovs.Operation{}, "", false
	}
	return ops[n-1], reason, true
}

// rejectedBySwitch parses a line such as
//
//	Error OFPBAC_BAD_OUT_GROUP for: OFPT_FLOW_MOD (OF1.4) (xid=0x7): ADD table:3 priority=6,ip cookie:0x5 actions=group:9
//
// with which ovs-ofctl prints the request that the switch rejected.
func rejectedBySwitch(line string, ops []ovs.Operation) (ovs.Operation, string, bool) {
	rest, ok := strings.CutPrefix(line, "Error ")
	if !ok {
		return ovs.Operation{}, "", false
	}
	if reason, request, ok := strings.Cut(rest, " for: OFPT_GROUP_MOD "); ok {
		return rejectedGroup(reason, request, ops)
	}
	reason, request, ok := strings.Cut(rest, " for: OFPT_FLOW_MOD ")
	if !ok {
		return ovs.Operation{}, "", false
	}
	_, mod, ok := strings.Cut(request, "): ") // after the XID
	if !ok {
		return ovs.Operation{}, "", false
	}
	table, priority, match, ok := flowmod.Parse(mod)
	if !ok {
		return ovs.Operation{}, "", false
	}
	key := ovs.Key{Table: table, Priority: priority, Match: match}
	wanted := ovs.VerbDelete
	if strings.HasPrefix(mod, "ADD ") {
		wanted = ovs.VerbAdd
	}
	for _, op := range ops {
		if op.Verb == wanted && op.Key == key {
			return op, reason, true
		}
	}
	return ovs.Operation{}, "", false
}

func rejectedGroup(reason, request string, ops []ovs.Operation) (ovs.Operation, string, bool) {
	for _, op := range ops {
		if op.Verb == ovs.VerbSetGroup && strings.Contains(request, fmt.Sprintf(" group_id=%d,", op.Group.ID)) {
			return op, reason, true
		}
	}
	return ovs.Operation{}, "", false
}
