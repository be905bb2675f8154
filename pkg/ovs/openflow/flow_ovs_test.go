package openflow_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
	"github.com/ovsdn/ovsdn/test/ovstest"
	"github.com/ovsdn/ovsdn/test/tier"
)

// properties returns texts of the properties of a flow other than match and actions. No flow times out during a test.
func properties() []string {
	return []string{
		"cookie=0x5", "cookie=0xffffffffffffffff", "idle_timeout=3605", "hard_timeout=65535", "importance=7",
		"send_flow_rem", "check_overlap", "reset_counts", "no_packet_counts", "no_byte_counts",
		"cookie=0x5,idle_timeout=3601,hard_timeout=3602,importance=3,send_flow_rem,check_overlap,reset_counts,no_packet_counts,no_byte_counts",
	}
}

// readCases reads a table in testdata: lines of columns between tabs.
func readCases(t testing.TB, name string) [][]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	var cases [][]string
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "#") {
			cases = append(cases, strings.Split(strings.TrimSuffix(line, "\n"), "\t"))
		}
	}
	return cases
}

// flowTexts returns flows with all matches and actions of testdata, each with a different key.
func flowTexts(t testing.TB) []string {
	t.Helper()
	var texts []string
	add := func(table int, match, rest string) {
		if match != "" {
			match = "," + match
		}
		texts = append(texts, fmt.Sprintf("table=%d,priority=%d%s,%s", table, 100+len(texts), match, rest))
	}
	for _, c := range readCases(t, "matches.txt") {
		add(1, c[0], "actions=drop")
	}
	for _, c := range readCases(t, "actions.txt") {
		if !strings.Contains(c[1], "unknown(") { // a syntax of this package only
			add(3, c[0], "actions="+c[1])
		}
	}
	for _, p := range properties() {
		add(7, "", p+",actions=drop")
	}
	return append(texts, "table=0,priority=32768,actions=drop", "table=9,priority=32768,ip,actions=drop", "table=9,priority=0,actions=drop")
}

func parseFlows(t testing.TB, texts []string) []*openflow.FlowMod {
	t.Helper()
	var flows []*openflow.FlowMod
	for _, text := range texts {
		m, err := openflow.ParseFlow(text)
		if err != nil {
			t.Fatal(err)
		}
		flows = append(flows, m)
	}
	return flows
}

func prepare(t testing.TB, s *ovstest.Switch) {
	t.Helper()
	s.OFCtl(t, "add-group", ovstest.Bridge, "group_id=1,type=all")
	s.OFCtl(t, "add-meter", ovstest.Bridge, "meter=1,pktps,band=type=drop,rate=1000")
}

// TestFlowsOnSwitch sends every match and action to Open vSwitch and checks a dump: its text equals the output of ovs-ofctl, and its keys
// and instructions equal those sent.
func TestFlowsOnSwitch(t *testing.T) {
	tier.Parallel(t)
	s := startSwitch(t)
	prepare(t, s)
	c := dial(t, s)
	flows := parseFlows(t, flowTexts(t))
	want := map[openflow.FlowKey]*openflow.FlowMod{}
	for _, f := range flows {
		if old := want[f.Key()]; old != nil {
			t.Errorf("%s and %s: got the same key, want different ones", old, f)
		}
		want[f.Key()] = f
		if _, answers := c.do(f); len(answers) > 0 {
			t.Errorf("%s: got answer %v, want none", f, answers[0].Message)
		}
	}
	if diff := cmp.Diff(c.dump(s), c.flowTexts()); diff != "" {
		t.Errorf("text differs from ovs-ofctl (-want +got):\n%s", diff)
	}
	for _, got := range c.flows() {
		w := want[got.Key()]
		if w == nil {
			t.Errorf("got %s in the dump, want only keys of sent flows", &got)
			continue
		}
		delete(want, got.Key())
		sent, err := w.Instructions.Canonical()
		if err != nil {
			t.Errorf("%s: canonical form: %v", w, err)
		}
		dumped, err := got.Instructions.Canonical()
		if err != nil {
			t.Errorf("%s: canonical form: %v", &got, err)
		}
		if sent != dumped {
			t.Errorf("instructions differ\ngot  %s\nwant %s", &got, w)
		}
		if w.Cookie != got.Cookie || w.IdleTimeout != got.IdleTimeout || w.HardTimeout != got.HardTimeout || w.Flags != got.Flags || w.Importance != got.Importance {
			t.Errorf("properties differ\ngot  %s\nwant %s", &got, w)
		}
	}
	for _, f := range want {
		t.Errorf("flow missing from the dump: %s", f)
	}
	for _, got := range c.flows() {
		key := got.Key()
		c.must(&openflow.FlowMod{Command: openflow.FlowDeleteStrict, Table: key.Table, Priority: key.Priority, Match: key.Match})
	}
	if left := c.dump(s); len(left) > 0 {
		t.Errorf("got flows after strict deletes of all keys, want none:\n%s", strings.Join(left, "\n"))
	}
}

// unsupported returns flows with matches and actions that this package does not support.
func unsupported() []string {
	return []string{
		"table=8,priority=1,ip,actions=clone(output:5),exit",
		"table=8,priority=2,actions=push:NXM_NX_REG0[0..15],pop:NXM_NX_REG1[0..15],multipath(symmetric_l4,1024,modulo_n,4,0,NXM_NX_REG6[])",
		"table=8,priority=3,tcp,actions=fin_timeout(idle_timeout=5),set_queue:5,output:3,pop_queue",
		"table=8,priority=4,actions=controller(userdata=01.02,pause),output(port=5,max_len=100)",
		"table=8,priority=5,ip,actions=dec_ttl(1,2),sample(probability=12345,collector_set_id=1,obs_domain_id=2,obs_point_id=3,sampling_port=4,egress)",
		"table=8,priority=6,tun_gbp_id=5,tun_gbp_flags=0x8,reg3=7,actions=drop",
		"table=8,priority=7,mpls,mpls_label=5,actions=pop_mpls:0x0800",
		"table=8,priority=8,tun_metadata0=5,actions=drop",
		"table=8,priority=9,actset_output=5,actions=write_actions(set_queue:5,output:7)",
	}
}

// TestFlowsOfOFCtl adds flows with ovs-ofctl, dumps them with this package and adds them again unchanged.
func TestFlowsOfOFCtl(t *testing.T) {
	tier.Parallel(t)
	s := startSwitch(t)
	prepare(t, s)
	s.OFCtl(t, "add-tlv-map", ovstest.Bridge, "{class=0xffff,type=0,len=4}->tun_metadata0")
	c := dial(t, s)
	addByOFCtl(t, s, flowTexts(t))
	if diff := cmp.Diff(c.dump(s), c.flowTexts()); diff != "" {
		t.Errorf("text differs from ovs-ofctl (-want +got):\n%s", diff)
	}
	want := map[openflow.FlowKey]string{}
	for _, f := range parseFlows(t, flowTexts(t)) {
		canonical, err := f.Instructions.Canonical()
		if err != nil {
			t.Error(err)
		}
		want[f.Key()] = canonical
	}
	for _, got := range c.flows() {
		if canonical, err := got.Instructions.Canonical(); err != nil || want[got.Key()] != canonical && !splitByOFCtl(&got) {
			t.Errorf("error %v; flow of ovs-ofctl: got a key or instructions that differ from those parsed from the same text: %s", err, &got)
		}
	}
	addByOFCtl(t, s, unsupported())
	before := c.dump(s)
	c.writeBack(s)
	if diff := cmp.Diff(before, c.dump(s)); diff != "" {
		t.Errorf("flows differ after being added again (-want +got):\n%s", diff)
	}
	c.must(&openflow.FlowMod{Command: openflow.FlowDelete, Table: openflow.AllTables})
}

func addByOFCtl(t testing.TB, s *ovstest.Switch, texts []string) {
	t.Helper()
	file := filepath.Join(s.RunDir, "flows.txt")
	if err := os.WriteFile(file, []byte(strings.Join(texts, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	s.OFCtl(t, "add-flows", ovstest.Bridge, file)
}

// writeBack dumps all flows, deletes them and adds them again, every other one from its text.
func (c *conn) writeBack(s *ovstest.Switch) {
	c.t.Helper()
	flows := c.flows()
	c.must(&openflow.FlowMod{Command: openflow.FlowDelete, Table: openflow.AllTables})
	if left := c.dump(s); len(left) > 0 {
		c.t.Fatalf("got flows %q after the deletion, want none", left)
	}
	for i, f := range flows {
		m, err := openflow.ParseFlow(f.String())
		if err != nil {
			c.t.Errorf("parse the text of a dumped flow: %v", err)
			continue
		}
		if i%2 == 0 {
			m = &openflow.FlowMod{
				Table: f.Table, Priority: f.Priority, Cookie: f.Cookie, IdleTimeout: f.IdleTimeout, HardTimeout: f.HardTimeout,
				Flags: f.Flags, Importance: f.Importance, Match: f.Match, Instructions: f.Instructions,
			}
		}
		c.must(m)
	}
}

// splitByOFCtl reports whether the flow has a set_field with a mask of several ranges of bits, which ovs-ofctl sends as several loads in OpenFlow 1.4.
func splitByOFCtl(f *openflow.FlowStats) bool {
	return strings.Count(f.String(), "NXM_NX_REG15[") == 2 || strings.Count(f.String(), "->reg15") == 2
}
