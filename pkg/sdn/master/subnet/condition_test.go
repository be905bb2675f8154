package subnet

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// config.ReasonNoHostSubnet documents when the controller writes the condition.
func TestSync_condition(t *testing.T) {
	const full = "no subnet is free in the cluster network 10.128.0.0/22 with 9 host bits: add a range to ClusterNetwork default, or delete Nodes whose machines no longer exist"
	confirmed := testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/23")
	for _, tc := range []struct {
		name   string
		before *corev1.NodeCondition
		state  state
		want   string
		writes int
	}{
		{name: "subnet allocated at once"},
		{
			name:  "no subnet and no condition",
			state: state{allocated: map[string]string{"a": "10.128.0.0/22"}},
			want:  "True NoHostSubnet " + full, writes: 1,
		},
		{
			name:   "no subnet, condition of the agent",
			before: &corev1.NodeCondition{Status: corev1.ConditionFalse, Reason: config.ReasonReady},
			state:  state{allocated: map[string]string{"a": "10.128.0.0/22"}},
			want:   "True NoHostSubnet " + full, writes: 1,
		},
		{
			name:   "no subnet, another message",
			before: &corev1.NodeCondition{Status: corev1.ConditionTrue, Reason: config.ReasonNoHostSubnet, Message: "the node has no InternalIP"},
			state:  state{allocated: map[string]string{"a": "10.128.0.0/22"}},
			want:   "True NoHostSubnet " + full, writes: 1,
		},
		{
			name:   "no subnet, condition up to date",
			before: &corev1.NodeCondition{Status: corev1.ConditionTrue, Reason: config.ReasonNoHostSubnet, Message: full},
			state:  state{allocated: map[string]string{"a": "10.128.0.0/22"}},
			want:   "True NoHostSubnet " + full,
		},
		{
			name:   "subnet allocated later",
			before: &corev1.NodeCondition{Status: corev1.ConditionTrue, Reason: config.ReasonNoHostSubnet, Message: full},
			state:  state{hs: confirmed},
			want:   "True HostSubnetGiven the node has the subnet 10.128.2.0/23; ovsdn-node has not set it up yet", writes: 1,
		},
		{
			name:   "subnet, agent ready",
			before: &corev1.NodeCondition{Status: corev1.ConditionFalse, Reason: config.ReasonReady, Message: "br0 is up"},
			state:  state{hs: confirmed},
			want:   "False OvsdnReady br0 is up",
		},
		{
			name:   "subnet, agent not ready",
			before: &corev1.NodeCondition{Status: corev1.ConditionTrue, Reason: config.ReasonNotReady, Message: "no OVS"},
			state:  state{hs: confirmed},
			want:   "True OvsdnNotReady no OVS",
		},
		{
			name:   "condition of another writer",
			before: &corev1.NodeCondition{Status: corev1.ConditionFalse, Reason: config.ReasonNoHostSubnet, Message: "?"},
			state:  state{hs: confirmed},
			want:   "False NoHostSubnet ?",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			since := metav1.Unix(1e9, 0)
			node := testNode("uid1", "192.0.2.1")
			node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
			if tc.before != nil {
				tc.before.Type, tc.before.LastHeartbeatTime, tc.before.LastTransitionTime = corev1.NodeNetworkUnavailable, since, since
				node.Status.Conditions = append(node.Status.Conditions, *tc.before)
			}
			tc.state.node = node
			f := newFixture(t, tc.state)
			_ = f.syncUntilConfirmed(t) // TestSync compares the errors
			if diff := cmp.Diff(tc.want, f.condition(t)); diff != "" {
				t.Error(diff)
			}
			writes := 0
			for _, a := range f.kube.Actions() {
				if a.GetVerb() == "patch" {
					writes++
				}
			}
			if writes != tc.writes {
				t.Errorf("got %d writes, want %d: %v", writes, tc.writes, f.kube.Actions())
			}
			after, err := f.kube.CoreV1().Nodes().Get(t.Context(), "node1", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(after.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady }) {
				t.Errorf("got conditions %+v, want Ready preserved", after.Status.Conditions)
			}
			now := config.NetworkUnavailable(after)
			if now == nil || tc.before == nil {
				return
			}
			if moved := !now.LastTransitionTime.Equal(&since); moved != (now.Status != tc.before.Status) {
				t.Errorf("got lastTransitionTime %s for a change from %s to %s, want a change of it only with the status", now.LastTransitionTime, tc.before.Status, now.Status)
			}
		})
	}
}

func TestWatch_changedCondition(t *testing.T) {
	f := newFixture(t, state{})
	withReason := func(reason string) *corev1.Node {
		n := testNode("uid1", "192.0.2.1")
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionTrue, Reason: reason, LastHeartbeatTime: metav1.Now()}}
		return n
	}
	if n := f.queuedAfter(t, withReason(config.ReasonNotReady), withReason(config.ReasonNotReady)); n != nil {
		t.Errorf("got queued %q for an unchanged condition, want none", n)
	}
	for _, before := range []*corev1.Node{testNode("uid1", "192.0.2.1"), withReason(config.ReasonNotReady)} {
		if n := f.queuedAfter(t, before, withReason(config.ReasonNoHostSubnet)); len(n) != 1 {
			t.Errorf("got queued %q, want node1", n)
		}
	}
}
