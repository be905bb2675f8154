package native_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"
	"testing"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/test/ovstest"
	"github.com/ovsdn/ovsdn/test/tier"
)

// TestNativeAndExecAgreeOnPorts and TestNativeAndExecAgreeOnFlows make the same random calls with each backend, on a switch of its own.
// All results must be equal, and in the end OVSDB, flows, groups and meters.
func TestNativeAndExecAgreeOnPorts(t *testing.T) { testAgree(t, 15, drawPortStep) }

func TestNativeAndExecAgreeOnFlows(t *testing.T) { testAgree(t, 30, drawFlowStep) }

func testAgree(t *testing.T, rounds int, draw func(*rapid.T) step) {
	t.Helper()
	tier.Parallel(t)
	sides := []side{newSide(t, "exec"), newSide(t, "native")}
	steps := rapid.SliceOfN(rapid.Custom(draw), 5, 15)
	rounds = tier.Size(t, rounds/5, rounds, "the first of the complete tier's random calls")
	for seed := range rounds {
		var log []string
		for _, step := range steps.Example(seed) {
			log = append(log, step.name)
			answers := [2]answer{}
			for i, s := range sides {
				answers[i] = step.do(t, s.Interface)
			}
			if diff := cmp.Diff(answers[0], answers[1]); diff != "" {
				t.Fatalf("round %d:\n%s\nresults (-exec +native):\n%s", seed, strings.Join(log, "\n"), diff)
			}
		}
		if diff := cmp.Diff(sides[0].state(t), sides[1].state(t)); diff != "" {
			t.Fatalf("round %d:\n%s\nstates (-exec +native):\n%s", seed, strings.Join(log, "\n"), diff)
		}
	}
}

type side struct {
	ovs.Interface
	s *ovstest.Switch
}

func newSide(t *testing.T, name string) side {
	s := ovstest.Start(t)
	var b ovs.Interface = native.NewExec(ovstest.Bridge, s.RunDir)
	if name == "native" {
		b = newNative(t, s)
	}
	must(t, b.EnsureBridge(t.Context(), bridge()))
	return side{b, s}
}

// state returns the flows, groups, meters and OVSDB rows of the switch.
func (s side) state(t *testing.T) map[string][]string {
	waitForMessages(t, s)
	state := map[string][]string{"flows": s.s.Dump(t), "groups": dumped(t, s.s, "dump-groups"), "meters": dumped(t, s.s, "dump-meters")}
	for table, columns := range map[string]string{
		"Bridge":     "name,datapath_type,fail_mode,protocols,other_config,external_ids,stp_enable,mcast_snooping_enable",
		"Port":       "name,tag,trunks,vlan_mode,other_config,external_ids",
		"Interface":  "name,type,options,ofport,ofport_request,mtu_request,mac,external_ids,other_config,error,ingress_policing_rate",
		"Flow_Table": "name,flow_limit,groups,overflow_policy,prefixes,external_ids",
	} {
		state[table] = strings.Split(strings.TrimSpace(s.s.VSCtl(t, "--format=csv", "--no-headings", "--columns="+columns, "list", table)), "\n")
	}
	for _, lines := range state {
		sort.Strings(lines)
	}
	return state
}

// answer is the result of a call.
type answer struct {
	Port    ovs.Port
	Ports   []ovs.Port
	Failure string
}

func answerOf(err error) answer {
	var rejected *ovs.FlowError
	var group *ovs.GroupError
	var meter *ovs.MeterError
	switch {
	case err == nil:
		return answer{}
	case errors.As(err, &rejected):
		return answer{Failure: "flow " + rejected.Key.String()} // two operations may have the same key
	case errors.As(err, &group):
		return answer{Failure: fmt.Sprint("group ", group.ID)}
	case errors.As(err, &meter):
		return answer{Failure: fmt.Sprint("meter ", meter.ID)}
	case ovs.IsPortError(err):
		return answer{Failure: err.Error()}
	case ovs.IsUnavailable(err):
		return answer{Failure: "unavailable"}
	}
	return answer{Failure: "other"}
}

type step struct {
	name string
	do   func(t *testing.T, b ovs.Interface) answer
}

func drawPortStep(t *rapid.T) step {
	switch rapid.IntRange(0, 5).Draw(t, "step") {
	case 0:
		b := bridge()
		b.TableNames = rapid.SampledFrom([]map[int]string{nil, {0: "classify"}, {0: "one", 7: `t"w o`, 253: "ünï"}}).Draw(t, "tables")
		return step{fmt.Sprint("EnsureBridge ", b.TableNames), func(t *testing.T, i ovs.Interface) answer { return answerOf(i.EnsureBridge(t.Context(), b)) }}
	case 1, 2, 3:
		p := drawPort(t)
		return step{fmt.Sprintf("AddPort %+v", p), func(t *testing.T, i ovs.Interface) answer {
			got, err := i.AddPort(t.Context(), p)
			a := answerOf(err)
			a.Port = got
			return a
		}}
	case 4:
		name := drawPortName(t)
		return step{"DeletePort " + name, func(t *testing.T, i ovs.Interface) answer { return answerOf(i.DeletePort(t.Context(), name)) }}
	}
	return step{"ListPorts", func(t *testing.T, i ovs.Interface) answer {
		ports, err := i.ListPorts(t.Context())
		a := answerOf(err)
		if len(ports) > 0 {
			a.Ports = ports
		}
		return a
	}}
}

func drawFlowStep(t *rapid.T) step {
	tx := &ovs.Transaction{}
	switch rapid.IntRange(0, 5).Draw(t, "step") {
	case 0:
		return drawReplace(t)
	case 1:
		drawMeters(t, tx)
	default:
		for range rapid.IntRange(1, 12).Draw(t, "operations") {
			drawOperation(t, tx)
		}
	}
	return step{"Run\n" + tx.String(), func(t *testing.T, i ovs.Interface) answer { return answerOf(i.Run(t.Context(), tx)) }}
}

func drawReplace(t *rapid.T) step {
	byKey := map[ovs.Key]*ovs.Flow{}
	rejected := false
	for range rapid.IntRange(0, 20).Draw(t, "flows") {
		f := drawFlow(t)
		key, err := ovs.FlowKey(f)
		if err != nil {
			t.Fatal(err)
		}
		if mayBeRejected(f) {
			if rejected {
				continue // the error may be about either of the two
			}
			rejected = true
		}
		byKey[key] = f
	}
	want := ovs.State{Flows: slices.Collect(maps.Values(byKey))}
	if rejected {
		return replacement(want) // Exec would leave other flows, because ovs-ofctl fails
	}
	for id := range rapid.Uint32Range(0, 3).Draw(t, "groups") {
		want.Groups = append(want.Groups, service(id+1, "10.1.0.1:80"))
	}
	for id := range rapid.Uint32Range(0, 2).Draw(t, "meters") {
		want.Meters = append(want.Meters, limit(id+1, 10))
	}
	return replacement(want)
}

func replacement(want ovs.State) step {
	return step{fmt.Sprintf("Replace by %d flows, %d groups, %d meters", len(want.Flows), len(want.Groups), len(want.Meters)), func(t *testing.T, i ovs.Interface) answer {
		_, err := i.Replace(t.Context(), want)
		return answerOf(err)
	}}
}

// mayBeRejected reports whether the flow refers to a group or meter, which may not exist.
func mayBeRejected(f *ovs.Flow) bool {
	text, err := ovs.ActionsText(f)
	return err != nil || strings.HasPrefix(text, "group:") || strings.HasPrefix(text, "meter:")
}

// drawOperation draws from few keys, so that operations affect the same objects. Meters are changed without flows, because Exec cannot
// restore meters if flows are rejected.
func drawOperation(t *rapid.T, tx *ovs.Transaction) {
	group := service(rapid.Uint32Range(1, 4).Draw(t, "group"), rapid.SliceOfN(rapid.SampledFrom([]string{"10.1.0.1:80", "10.1.0.2", "[fd00::1]:80"}), 0, 4).Draw(t, "endpoints")...)
	switch rapid.IntRange(0, 6).Draw(t, "operation") {
	case 0, 1, 2:
		tx.Add(drawFlow(t))
	case 3, 4:
		tx.Delete(drawFlow(t))
	case 5:
		tx.SetGroup(group)
	case 6:
		tx.DeleteGroup(group.ID)
	}
}

func drawMeters(t *rapid.T, tx *ovs.Transaction) {
	for range rapid.IntRange(1, 5).Draw(t, "meters") {
		m := ovs.Meter{
			ID: rapid.Uint32Range(1, 4).Draw(t, "meter"), Rate: rapid.Uint32Range(1, 3).Draw(t, "rate"), Burst: rapid.Uint32Range(0, 2).Draw(t, "burst"),
			Unit: rapid.SampledFrom([]ovs.MeterUnit{ovs.Kilobits, ovs.Packets}).Draw(t, "unit"),
		}
		if rapid.Bool().Draw(t, "delete") {
			tx.DeleteMeter(m.ID)
		} else {
			tx.SetMeter(m)
		}
	}
}

func drawPortName(t *rapid.T) string {
	return rapid.SampledFrom([]string{"one", "two", "three", "no-such-device"}).Draw(t, "name")
}

func drawPort(t *rapid.T) ovs.Port {
	p := ovs.Port{
		Name:        drawPortName(t),
		Type:        rapid.SampledFrom([]string{"internal", "internal", "internal", "vxlan", "no-such-type"}).Draw(t, "type"),
		OFPort:      rapid.SampledFrom([]int{0, 0, 0, 1, 5, 9}).Draw(t, "ofport"),
		ExternalIDs: rapid.SampledFrom([]map[string]string{nil, {"a": "1"}, {"a": "2", "b": `"x y"`}}).Draw(t, "external IDs"),
	}
	switch {
	case p.Name == "no-such-device":
		p.Type = ""
	case p.Type == "internal":
		p.MTURequest = rapid.SampledFrom([]int{0, 1400, 1450}).Draw(t, "MTU")
		p.MAC = rapid.SampledFrom([]string{"", "0a:58:0a:80:00:01", "0A:58:0A:80:00:02"}).Draw(t, "MAC")
	case p.Type == "vxlan":
		p.Options = rapid.SampledFrom([]map[string]string{nil, {"remote_ip": "flow", "key": "flow"}, {"remote_ip": "192.0.2.1", "dst_port": "4790"}}).Draw(t, "options")
	}
	return p
}

// drawFlow draws from few keys, so that flows replace each other; the switch rejects some of them.
func drawFlow(t *rapid.T) *ovs.Flow {
	f := longFlow()
	if rapid.IntRange(0, 3).Draw(t, "long") > 0 {
		f = flow(rapid.SampledFrom([]int{0, 3, 60}).Draw(t, "table"), rapid.SampledFrom([]int{0, 1, 32768, 65535}).Draw(t, "priority"),
			rapid.SampledFrom([]string{"10.0.0.1/32", "10.0.0.0/8", "0.0.0.0/0"}).Draw(t, "source"))
	}
	f.Cookie = rapid.SampledFrom([]uint64{0, 1, 1<<64 - 1}).Draw(t, "cookie")
	f.IdleTimeout = rapid.SampledFrom([]int{0, 0, 0, 600}).Draw(t, "idle time-out")
	f.Actions = rapid.SampledFrom([][]ovs.Action{
		{goovs.Drop()},
		{goovs.Load("0x64", "NXM_NX_REG0[]"), ovs.GotoTable(80)},
		{goovs.Move("NXM_NX_REG0[]", "NXM_NX_TUN_ID[0..31]"), goovs.SetField("192.0.2.1", "tun_dst"), goovs.Output(1)},
		{ovs.Note([]byte{1, 2, 3, 4, 5, 6, 7})},
		{ovs.Sample{Probability: 163, CollectorSet: 1, Domain: 2, Point: 1 << 31}},
		{goovs.Conjunction(5, 1, 2), goovs.Conjunction(6, 2, 3)},
		{goovs.ConnectionTracking("commit,zone=NXM_NX_REG0[0..15],nat(src=10.0.0.1-10.0.0.9:5-99,random),exec(load:0x1->NXM_NX_CT_MARK[]),table=90")},
		{goovs.OutputField("NXM_NX_REG2[]")},
		{goovs.Resubmit(0, 90)},
		{ovs.ToGroup(99)},
		{ovs.ToGroup(1)},
		{ovs.ThroughMeter(1), goovs.Output(1)},
		append(ovs.Recirculate(0x0800), goovs.Resubmit(0, 90)),
	}).Draw(t, "actions")
	return f
}
