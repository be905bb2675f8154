package openflow_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
	"github.com/ovsdn/ovsdn/test/ovstest"
	"github.com/ovsdn/ovsdn/test/tier"
)

// groups returns all groups, sorted.
func (c *conn) groups() []openflow.Group {
	c.t.Helper()
	reply := ask[*openflow.GroupDescReply](c, &openflow.GroupDescRequest{})
	slices.SortFunc(reply.Groups, func(a, b openflow.Group) int { return int(a.ID) - int(b.ID) })
	return reply.Groups
}

// groupTexts returns the groups as ovs-ofctl prints them.
func (c *conn) groupTexts() []string {
	c.t.Helper()
	var texts []string
	for _, g := range c.groups() {
		texts = append(texts, g.String())
	}
	return texts
}

func (c *conn) checkGroupTexts(s *ovstest.Switch) {
	c.t.Helper()
	want := c.ofctl(s, "dump-groups", ovstest.Bridge)
	slices.Sort(want)
	got := c.groupTexts()
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		c.t.Errorf("text differs from ovs-ofctl (-want +got):\n%s", diff)
	}
}

func parseGroups(t *testing.T, texts ...string) []openflow.Group {
	t.Helper()
	var groups []openflow.Group
	for _, text := range texts {
		g, err := openflow.ParseGroup(text)
		if err != nil {
			t.Fatal(err)
		}
		groups = append(groups, *g)
	}
	return groups
}

func TestGroupsOnSwitch(t *testing.T) {
	tier.Parallel(t)
	s := startSwitch(t)
	texts := []string{
		"group_id=1,type=all",
		"group_id=2,type=indirect,bucket=actions=output:5",
		"group_id=3,type=all,bucket=actions=output:5,bucket=actions=output:6,load:5->NXM_NX_REG0[],resubmit(,7)",
		"group_id=4,type=ff,bucket=watch_port:5,actions=output:5,bucket=watch_group:3,actions=output:6",
		"group_id=5,type=select,bucket=weight=50,actions=ct(commit,zone=9,nat(dst=10.1.0.3:8080),table=8),bucket=weight=1,watch_port=5,actions=set_field:5->reg0,move:NXM_NX_REG0[]->NXM_NX_REG1[],output:5",
		"group_id=6,type=select,bucket=output:5,bucket=weight:0,actions=drop",
	}
	c := dial(t, s)
	want := parseGroups(t, texts...)
	for _, g := range want {
		c.must(&openflow.GroupMod{Command: openflow.GroupAdd, Group: g})
	}
	c.checkGroupTexts(s)
	got := c.groups()
	if len(got) != len(want) {
		t.Fatalf("got %d groups, want %d", len(got), len(want))
	}
	for i := range want {
		sent, err := want[i].Canonical()
		if err != nil {
			t.Error(err)
		}
		dumped, err := got[i].Canonical()
		if err != nil || sent != dumped {
			t.Errorf("error %v\ngot  %s\nwant %s", err, &got[i], &want[i])
		}
	}
	c.must(parseFlows(t, []string{"table=5,actions=group:5"})[0])
	modified := parseGroups(t, "group_id=3,type=select,bucket=weight=5,actions=output:7")[0]
	c.must(&openflow.GroupMod{Command: openflow.GroupModify, Group: modified})
	added := parseGroups(t, "group_id=10,type=all")[0]
	c.must(&openflow.GroupMod{Command: openflow.GroupAddOrModify, Group: added})
	c.must(&openflow.GroupMod{Command: openflow.GroupAddOrModify, Group: added})
	c.checkGroupTexts(s)

	c.must(&openflow.GroupMod{Command: openflow.GroupDelete, Group: openflow.Group{ID: 5}})
	if left := c.dump(s); len(left) > 0 {
		t.Errorf("got flows %q after their group was deleted, want none", left)
	}
	c.must(&openflow.GroupMod{Command: openflow.GroupDelete, Group: openflow.Group{ID: openflow.AllGroups}})
	if left := c.groups(); len(left) > 0 {
		t.Errorf("got groups %v after the deletion, want none", left)
	}
}

func TestMetersOnSwitch(t *testing.T) {
	tier.Parallel(t)
	s := startSwitch(t)
	c := dial(t, s)
	meters := []openflow.Meter{
		{ID: 1, Flags: openflow.MeterKbps, Bands: []openflow.Band{{Type: openflow.BandDrop, Rate: 1000}}},
		{ID: 2, Flags: openflow.MeterPktps | openflow.MeterBurst | openflow.MeterCounts, Bands: []openflow.Band{{Type: openflow.BandDrop, Rate: 100, Burst: 50}}},
	}
	for _, m := range meters {
		c.must(&openflow.MeterMod{Command: openflow.MeterAdd, Meter: m})
	}
	first, answers := c.do(&openflow.MeterMod{Command: openflow.MeterAdd, Meter: meters[0]})
	c.checkRejection(rejection{name: "meter exists", want: "OFPMMFC_METER_EXISTS"}, first, answers)
	meters[0].Bands[0].Rate = 2000
	c.must(&openflow.MeterMod{Command: openflow.MeterModify, Meter: meters[0]})

	reply := ask[*openflow.MeterConfigReply](c, &openflow.MeterConfigRequest{Meter: openflow.AllMeters})
	slices.SortFunc(reply.Meters, func(a, b openflow.Meter) int { return int(a.ID) - int(b.ID) })
	if diff := cmp.Diff(meters, reply.Meters); diff != "" {
		t.Errorf("meters (-want +got):\n%s", diff)
	}
	var texts []string
	for _, m := range reply.Meters {
		texts = append(texts, m.String())
	}
	got := strings.Fields(strings.Join(texts, " "))
	want := strings.Fields(strings.Join(c.ofctl(s, "dump-meters", ovstest.Bridge), " "))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("text differs from ovs-ofctl (-want +got):\n%s", diff)
	}
	c.must(parseFlows(t, []string{"table=5,actions=meter:2"})[0])
	c.must(&openflow.MeterMod{Command: openflow.MeterDelete, Meter: openflow.Meter{ID: openflow.AllMeters}})
	if left := c.dump(s); len(left) > 0 {
		t.Errorf("got flows %q after their meter was deleted, want none", left)
	}
}
