package openflow_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
	"github.com/ovsdn/ovsdn/test/ovstest"
	"github.com/ovsdn/ovsdn/test/tier"
)

const bundleFlags = openflow.BundleAtomic | openflow.BundleOrdered

// bundle sends the messages in one bundle and returns the XID of the first of them. If a message is rejected when it is added, bundle discards
// the bundle, because Open vSwitch would commit the other messages.
func (c *conn) bundle(id uint32, messages ...openflow.Message) (first uint32, committed bool, answers []answer) {
	c.t.Helper()
	open := &openflow.BundleControl{ID: id, Step: openflow.BundleOpen, Flags: bundleFlags}
	all := []openflow.Message{open}
	for _, m := range messages {
		all = append(all, &openflow.BundleAdd{ID: id, Flags: bundleFlags, Message: m})
	}
	first, answers = c.do(all...)
	if len(answers) == 0 || !isStep(answers[0], openflow.BundleOpened) {
		c.t.Fatalf("got answers %v, want a confirmation that the bundle is open", answers)
	}
	if answers = answers[1:]; len(answers) > 0 {
		if _, a := c.do(&openflow.BundleControl{ID: id, Step: openflow.BundleDiscard, Flags: bundleFlags}); !isStep(a[0], openflow.BundleDiscarded) {
			c.t.Fatalf("got answers %v, want a confirmation that the bundle is discarded", a)
		}
		return first + 1, false, answers
	}
	_, answers = c.do(&openflow.BundleControl{ID: id, Step: openflow.BundleCommit, Flags: bundleFlags})
	if len(answers) == 1 && isStep(answers[0], openflow.BundleCommitted) {
		return first + 1, true, nil
	}
	return first + 1, false, answers
}

func isStep(a answer, step openflow.BundleStep) bool {
	control, ok := a.Message.(*openflow.BundleControl)
	return ok && control.Step == step
}

func TestBundle(t *testing.T) {
	tier.Parallel(t)
	s := startSwitch(t)
	c := dial(t, s)
	var messages []openflow.Message
	for i := range 1000 {
		f, err := openflow.ParseFlow(fmt.Sprintf("table=50,priority=100,cookie=%d,arp,arp_tpa=10.128.%d.%d,actions=move:NXM_NX_REG0[]->NXM_NX_TUN_ID[0..31],set_field:192.0.2.9->tun_dst,output:1", i+1, i/256, i%256))
		if err != nil {
			t.Fatal(err)
		}
		messages = append(messages, f)
	}
	group, err := openflow.ParseGroup("group_id=7,type=select,bucket=weight=3,actions=output:5")
	if err != nil {
		t.Fatal(err)
	}
	messages = append([]openflow.Message{&openflow.GroupMod{Command: openflow.GroupAdd, Group: *group}}, messages...)
	messages = append(messages, parseFlows(t, []string{"table=51,actions=group:7"})[0])
	if _, ok, answers := c.bundle(1, messages...); !ok || len(answers) > 0 {
		t.Fatalf("got committed %t and answers %v, want true and none", ok, answers)
	}
	if n := len(c.flows()); n != 1001 {
		t.Errorf("got %d flows after the bundle, want 1001", n)
	}
	filtered := ask[*openflow.FlowStatsReply](c, &openflow.FlowStatsRequest{FlowFilter: openflow.FlowFilter{Table: openflow.AllTables, Cookie: 5, CookieMask: ^uint64(0)}})
	if len(filtered.Flows) != 1 {
		t.Errorf("got %d flows with cookie 5, want 1", len(filtered.Flows))
	}
	before := c.dump(s)
	for _, r := range rejections(t) {
		messages := []openflow.Message{
			parseFlows(t, []string{"table=52,priority=1,actions=drop"})[0],
			r.message,
			parseFlows(t, []string{"table=52,priority=2,actions=drop"})[0],
		}
		first, ok, answers := c.bundle(2, messages...)
		if ok {
			t.Errorf("%s: got committed true, want false", r.name)
		}
		c.checkRejection(r, first+1, answers)
		if diff := cmp.Diff(before, c.dump(s)); diff != "" {
			t.Errorf("%s: rejected bundle changed flows (-want +got):\n%s", r.name, diff)
		}
	}
	deletion := &openflow.FlowMod{Command: openflow.FlowDelete, Table: openflow.AllTables}
	groups := &openflow.GroupMod{Command: openflow.GroupDelete, Group: openflow.Group{ID: openflow.AllGroups}}
	if _, ok, answers := c.bundle(3, deletion, groups); !ok || len(answers) > 0 {
		t.Errorf("got committed %t and answers %v, want true and none", ok, answers)
	}
	if left := c.dump(s); len(left) > 0 {
		t.Errorf("got %d flows after the deletion, want 0", len(left))
	}
}

// rejection is a message that the switch rejects, and the name of the expected error.
type rejection struct {
	name    string
	message openflow.Message
	want    string
}

func rejections(t *testing.T) []rejection {
	flow := func(text string) openflow.Message { return parseFlows(t, []string{text})[0] }
	long := flow("table=5,priority=7,cookie=0x77,actions=goto_table:5").(*openflow.FlowMod)
	for range 2000 {
		long.Instructions.Apply = append(long.Instructions.Apply, openflow.Output{Port: 5})
	}
	return []rejection{
		{"32 KB", long, "OFPBIC_BAD_TABLE_ID"},
		{"set outside of ct", flow("table=5,priority=7,cookie=0x77,actions=set_field:5->ct_mark"), "OFPBAC_BAD_SET_ARGUMENT"},
		{"set_field without its protocol", flow("table=5,priority=7,cookie=0x77,actions=set_field:80->tcp_dst"), "OFPBAC_MATCH_INCONSISTENT"},
		{"goto backwards", flow("table=5,priority=7,cookie=0x77,actions=goto_table:5"), "OFPBIC_BAD_TABLE_ID"},
		{"unknown meter", flow("table=5,priority=7,cookie=0x77,actions=meter:77"), "OFPMMFC_INVALID_METER"},
		{"unknown group", flow("table=5,priority=7,cookie=0x77,actions=group:77"), "OFPBAC_BAD_OUT_GROUP"},
		{"hidden table", flow("table=254,priority=7,cookie=0x77,actions=drop"), "OFPBRC_EPERM"},
		{"group exists", &openflow.GroupMod{Command: openflow.GroupAdd, Group: openflow.Group{ID: 7}}, "OFPGMFC_GROUP_EXISTS"},
	}
}

// checkRejection checks that an answer is the expected error and identifies the rejected message by XID and data.
func (c *conn) checkRejection(r rejection, xid uint32, answers []answer) {
	c.t.Helper()
	var names []string
	found := false
	for _, a := range answers {
		e, ok := a.Message.(*openflow.Error)
		if !ok {
			c.t.Errorf("%s: got answer %v, want an error", r.name, a.Message)
			continue
		}
		names = append(names, fmt.Sprintf("%d:%s", a.xid-xid, e.Name()))
		if a.xid != xid || !strings.Contains(e.Error(), r.want) {
			continue
		}
		found = true
		request, err := openflow.ParseHeader(e.Data)
		if err != nil || request.XID != xid || request.Version != openflow.Version14 {
			c.t.Errorf("%s: got error data with header %+v, want XID %d and %s", r.name, request, xid, openflow.Version14)
		}
		if flow, ok := r.message.(*openflow.FlowMod); ok {
			_, m, err := openflow.Decode(e.Data)
			if add, ok := m.(*openflow.BundleAdd); err != nil || !ok || fmt.Sprint(add.Message) != c.again(flow) {
				c.t.Errorf("%s: got error data %x, want the message", r.name, e.Data)
			}
		}
	}
	if !found {
		c.t.Errorf("%s: got errors %v, want 0:%s", r.name, names, r.want)
	}
}

// again returns the text of the flow after encoding and decoding.
func (c *conn) again(flow *openflow.FlowMod) string {
	c.t.Helper()
	b, err := openflow.Append(nil, 1, flow)
	if err != nil {
		c.t.Fatal(err)
	}
	_, m, err := openflow.Decode(b)
	if err != nil {
		c.t.Fatal(err)
	}
	return fmt.Sprint(m)
}

// TestErrorNames compares the names of errors with those of ovs-ofctl.
func TestErrorNames(t *testing.T) {
	tier.Parallel(t)
	s := ovstest.Start(t)
	known := 0
	for typ := range uint16(20) {
		for code := range uint16(32) {
			e := &openflow.Error{Type: typ, Code: code}
			if checkErrorName(t, s, e, fmt.Sprintf("vendor 0, type %d, code %d", typ, code)) {
				known++
			}
		}
	}
	for code := range uint16(64) {
		e := &openflow.Error{Type: openflow.ErrorExperimenter, Code: code, Experimenter: 0x2320}
		if checkErrorName(t, s, e, fmt.Sprintf("vendor 0x2320, type %d, code 0", code)) {
			known++
		}
	}
	if known < 150 {
		t.Errorf("got %d errors with a name, want at least 150", known)
	}
}

func checkErrorName(t *testing.T, s *ovstest.Switch, e *openflow.Error, want string) bool {
	t.Helper()
	name := e.Name()
	if strings.Contains(name, " ") {
		return false // numbers: the error has no name
	}
	out, err := s.Command(t.Context(), "ovs-ofctl", "print-error", name).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", name, err, out)
	}
	for line := range strings.Lines(string(out)) {
		version, numbers, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if (version == "OpenFlow 1.4" || version == "OpenFlow 1.5") && numbers == want {
			return true
		}
	}
	t.Errorf("%s: got\n%s\nfrom ovs-ofctl, want %q", name, out, want)
	return true
}
