package openflow_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

// groups dumps all groups, sorted.
func (c *conn) groups() []openflow.Group {
	c.t.Helper()
	reply := ask[*openflow.GroupDescReply](c, &openflow.GroupDescRequest{Group: openflow.AllGroups})
	slices.SortFunc(reply.Groups, func(a, b openflow.Group) int { return int(a.ID) - int(b.ID) })
	return reply.Groups
}

// groupTexts prints groups as ovs-ofctl does: in OpenFlow 1.4 it knows no bucket ids.
func (c *conn) groupTexts() []string {
	c.t.Helper()
	var texts []string
	for _, g := range c.groups() {
		text := g.String()
		if c.version < openflow.Version15 {
			text = regexp.MustCompile(`bucket_id:\d+,`).ReplaceAllString(text, "")
		}
		texts = append(texts, text)
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
		c.t.Errorf("ovs-ofctl (-) and this package (+) print differently:\n%s", diff)
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
	s := startSwitch(t)
	both := []string{
		"group_id=1,type=all",
		"group_id=2,type=indirect,bucket=actions=output:5",
		"group_id=3,type=all,bucket=actions=output:5,bucket=actions=output:6,load:5->NXM_NX_REG0[],resubmit(,7)",
		"group_id=4,type=ff,bucket=watch_port:5,actions=output:5,bucket=watch_group:3,actions=output:6",
		"group_id=5,type=select,bucket=weight=50,actions=ct(commit,zone=9,nat(dst=10.1.0.3:8080),table=8),bucket=weight=1,watch_port=5,actions=set_field:5->reg0,move:NXM_NX_REG0[]->NXM_NX_REG1[],output:5",
		"group_id=6,type=select,bucket=output:5,bucket=weight:0,actions=drop",
	}
	only15 := []string{
		"group_id=7,type=select,selection_method=hash,fields(ip_dst,nw_proto,tcp_src,tcp_dst),bucket=bucket_id=1,weight=50,actions=output:5,bucket=bucket_id=9,weight=50,actions=output:6",
		"group_id=8,type=select,selection_method=hash,selection_method_param=5,fields=ip_src=255.255.0.0,bucket=bucket_id=7,actions=output:5",
		"group_id=9,type=select,selection_method=dp_hash,selection_method_param=1,bucket=bucket_id:4294967040,weight=5,actions=output:5",
	}
	for _, version := range []openflow.Version{openflow.Version14, openflow.Version15} {
		t.Run(version.String(), func(t *testing.T) {
			c := dial(t, s, version)
			texts := both
			if version == openflow.Version15 {
				texts = append(slices.Clone(both), only15...)
			}
			want := parseGroups(t, texts...)
			for _, g := range want {
				c.must(&openflow.GroupMod{Command: openflow.GroupAdd, Group: g})
			}
			c.checkGroupTexts(s)
			got := c.groups()
			if len(got) != len(want) {
				t.Fatalf("%d groups", len(got))
			}
			for i := range want {
				sent, err := want[i].Canonical()
				if err != nil {
					t.Error(err)
				}
				dumped, err := got[i].Canonical()
				if err != nil || sent != dumped {
					t.Errorf("%v: sent   %s\ndumped %s", err, &want[i], &got[i])
				}
			}
			c.must(parseFlows(t, []string{"table=5,actions=group:5"})[0])
			stats := ask[*openflow.GroupStatsReply](c, &openflow.GroupStatsRequest{Group: 5})
			if len(stats.Groups) != 1 || stats.Groups[0].References != 1 || len(stats.Groups[0].Buckets) != 2 {
				t.Errorf("%+v", stats)
			}
			modified := parseGroups(t, "group_id=3,type=select,bucket=weight=5,actions=output:7")[0]
			c.must(&openflow.GroupMod{Command: openflow.GroupModify, Group: modified})
			added := parseGroups(t, "group_id=10,type=all")[0]
			c.must(&openflow.GroupMod{Command: openflow.GroupAddOrModify, Group: added})
			c.must(&openflow.GroupMod{Command: openflow.GroupAddOrModify, Group: added})
			c.checkGroupTexts(s)

			c.must(&openflow.GroupMod{Command: openflow.GroupDelete, Group: openflow.Group{ID: 5}})
			if left := c.dump(s); len(left) > 0 {
				t.Errorf("the group is gone, flows to it are not: %q", left)
			}
			c.must(&openflow.GroupMod{Command: openflow.GroupDelete, Group: openflow.Group{ID: openflow.AllGroups}})
			if left := c.groups(); len(left) > 0 {
				t.Errorf("%v left", left)
			}
		})
	}
}

func TestBucketsOnSwitch(t *testing.T) {
	s := startSwitch(t)
	c := dial(t, s, openflow.Version15)
	change := func(command openflow.GroupCommand, place uint32, text string) {
		t.Helper()
		g := openflow.Group{ID: 1, Type: openflow.GroupSelect}
		if text != "" {
			g = parseGroups(t, "group_id=1,type=select,"+text)[0]
		}
		m := &openflow.GroupMod{Command: command, Group: g, Bucket: place}
		if _, answers := c.do(m); len(answers) > 0 {
			t.Errorf("%s: %v", m, answers[0].Message)
		}
	}
	expect := func(want string) {
		t.Helper()
		groups := c.groups()
		if got := groups[0].String(); got != "group_id=1,type=select,selection_method=hash"+want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	change(openflow.GroupAdd, 0, "selection_method=hash,bucket=bucket_id=5,weight=2,actions=output:5")
	change(openflow.GroupInsertBucket, openflow.LastBucket, "bucket=bucket_id=6,weight=3,actions=output:6")
	change(openflow.GroupInsertBucket, openflow.FirstBucket, "bucket=bucket_id=4,actions=output:4")
	change(openflow.GroupInsertBucket, 5, "bucket=bucket_id=9,actions=output:9")
	expect(",bucket=bucket_id:4,actions=output:4,bucket=bucket_id:5,weight:2,actions=output:5" +
		",bucket=bucket_id:9,actions=output:9,bucket=bucket_id:6,weight:3,actions=output:6")
	change(openflow.GroupRemoveBucket, 5, "")
	change(openflow.GroupRemoveBucket, openflow.FirstBucket, "")
	expect(",bucket=bucket_id:9,actions=output:9,bucket=bucket_id:6,weight:3,actions=output:6")
	change(openflow.GroupRemoveBucket, openflow.AllBuckets, "")
	expect("")
	c.checkGroupTexts(s)

	first, answers := c.do(&openflow.GroupMod{Command: openflow.GroupRemoveBucket, Group: openflow.Group{ID: 1, Type: openflow.GroupSelect}, Bucket: 77})
	c.checkRefusal(refusal{name: "unknown bucket", want: "OFPGMFC_UNKNOWN_BUCKET"}, first, answers)

	old := dial(t, s, openflow.Version14)
	if _, err := openflow.Append(nil, openflow.Version14, 1, &openflow.GroupMod{Command: openflow.GroupInsertBucket}); err == nil {
		t.Error("OpenFlow 1.4 has no insert_bucket")
	}
	if groups := old.groups(); groups[0].Selection != nil {
		t.Error("OpenFlow 1.4 shows a selection method; the package comment says it can't")
	}
}

func TestMetersOnSwitch(t *testing.T) {
	s := startSwitch(t)
	for _, version := range []openflow.Version{openflow.Version14, openflow.Version15} {
		t.Run(version.String(), func(t *testing.T) {
			c := dial(t, s, version)
			meters := []openflow.Meter{
				{ID: 1, Flags: openflow.MeterKbps, Bands: []openflow.Band{{Type: openflow.BandDrop, Rate: 1000}}},
				{ID: 2, Flags: openflow.MeterPktps | openflow.MeterBurst | openflow.MeterCounts, Bands: []openflow.Band{{Type: openflow.BandDrop, Rate: 100, Burst: 50}}},
			}
			for _, m := range meters {
				c.must(&openflow.MeterMod{Command: openflow.MeterAdd, Meter: m})
			}
			first, answers := c.do(&openflow.MeterMod{Command: openflow.MeterAdd, Meter: meters[0]})
			c.checkRefusal(refusal{name: "meter exists", want: "OFPMMFC_METER_EXISTS"}, first, answers)
			meters[0].Bands[0].Rate = 2000
			c.must(&openflow.MeterMod{Command: openflow.MeterModify, Meter: meters[0]})

			reply := ask[*openflow.MeterConfigReply](c, &openflow.MeterConfigRequest{Meter: openflow.AllMeters})
			slices.SortFunc(reply.Meters, func(a, b openflow.Meter) int { return int(a.ID) - int(b.ID) })
			if diff := cmp.Diff(meters, reply.Meters); diff != "" {
				t.Error(diff)
			}
			var texts []string
			for _, m := range reply.Meters {
				texts = append(texts, m.String())
			}
			got := strings.Fields(strings.Join(texts, " "))
			want := strings.Fields(strings.Join(c.ofctl(s, "dump-meters", ovstest.Bridge), " "))
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("ovs-ofctl (-) and this package (+) print differently:\n%s", diff)
			}
			c.must(parseFlows(t, []string{"table=5,actions=meter:2"})[0])
			stats := ask[*openflow.MeterStatsReply](c, &openflow.MeterStatsRequest{Meter: 2})
			if len(stats.Meters) != 1 || stats.Meters[0].ID != 2 || len(stats.Meters[0].Bands) != 1 {
				t.Errorf("%+v", stats)
			}
			c.must(&openflow.MeterMod{Command: openflow.MeterDelete, Meter: openflow.Meter{ID: openflow.AllMeters}})
			if left := c.dump(s); len(left) > 0 {
				t.Errorf("the meter is gone, flows through it are not: %q", left)
			}
		})
	}
}
