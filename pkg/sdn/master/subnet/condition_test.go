package subnet

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// Whose turn it is to write the condition is said at config.ReasonNoHostSubnet.
func TestConditionHasOneWriterAtATime(t *testing.T) {
	const full = "no subnet is free in the cluster network 10.128.0.0/22 with 9 host bits: add a range to ClusterNetwork default, or delete nodes that are gone"
	given := testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/23")
	for _, tc := range []struct {
		name   string
		before *corev1.NodeCondition
		scene  scene
		want   string
		writes int
	}{
		{name: "a node that gets its subnet at once is left alone"},
		{
			name:  "no subnet, and nobody has said anything",
			scene: scene{held: map[string]string{"a": "10.128.0.0/22"}},
			want:  "True NoHostSubnet " + full, writes: 1,
		},
		{
			name:   "no subnet, though the agent was ready once",
			before: &corev1.NodeCondition{Status: corev1.ConditionFalse, Reason: config.ReasonReady},
			scene:  scene{held: map[string]string{"a": "10.128.0.0/22"}},
			want:   "True NoHostSubnet " + full, writes: 1,
		},
		{
			name:   "no subnet for another reason",
			before: &corev1.NodeCondition{Status: corev1.ConditionTrue, Reason: config.ReasonNoHostSubnet, Message: "the node has no InternalIP"},
			scene:  scene{held: map[string]string{"a": "10.128.0.0/22"}},
			want:   "True NoHostSubnet " + full, writes: 1,
		},
		{
			name:   "no subnet, as was said",
			before: &corev1.NodeCondition{Status: corev1.ConditionTrue, Reason: config.ReasonNoHostSubnet, Message: full},
			scene:  scene{held: map[string]string{"a": "10.128.0.0/22"}},
			want:   "True NoHostSubnet " + full,
		},
		{
			name:   "a subnet at last",
			before: &corev1.NodeCondition{Status: corev1.ConditionTrue, Reason: config.ReasonNoHostSubnet, Message: full},
			scene:  scene{hs: given},
			want:   "True HostSubnetGiven the node has the subnet 10.128.2.0/23; ovsdn-node has not set it up yet", writes: 1,
		},
		{
			name:   "a subnet and an agent that is ready",
			before: &corev1.NodeCondition{Status: corev1.ConditionFalse, Reason: config.ReasonReady, Message: "br0 is up"},
			scene:  scene{hs: given},
			want:   "False OvsdnReady br0 is up",
		},
		{
			name:   "a subnet and an agent that is not",
			before: &corev1.NodeCondition{Status: corev1.ConditionTrue, Reason: config.ReasonNotReady, Message: "no OVS"},
			scene:  scene{hs: given},
			want:   "True OvsdnNotReady no OVS",
		},
		{
			name:   "somebody else's word, whatever its reason",
			before: &corev1.NodeCondition{Status: corev1.ConditionFalse, Reason: config.ReasonNoHostSubnet, Message: "?"},
			scene:  scene{hs: given},
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
			tc.scene.node = node
			f := newFixture(t, tc.scene)
			_ = f.settle(t) // the complaints are seen in TestSync
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
				t.Errorf("%d writes, want %d: %v", writes, tc.writes, f.kube.Actions())
			}
			after, err := f.kube.CoreV1().Nodes().Get(t.Context(), "node1", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(after.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady }) {
				t.Errorf("the other conditions are gone: %+v", after.Status.Conditions)
			}
			now := config.NetworkUnavailable(after)
			if now == nil || tc.before == nil {
				return
			}
			if moved := !now.LastTransitionTime.Equal(&since); moved != (now.Status != tc.before.Status) {
				t.Errorf("from %s to %s, with lastTransitionTime %s", tc.before.Status, now.Status, now.LastTransitionTime)
			}
		})
	}
}

// What the condition says is work when it changes, and not when it is said again.
func TestConditionIsWatched(t *testing.T) {
	f := newFixture(t, scene{})
	say := func(reason string) *corev1.Node {
		n := testNode("uid1", "192.0.2.1")
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionTrue, Reason: reason, LastHeartbeatTime: metav1.Now()}}
		return n
	}
	if n := f.queuedAfter(t, say(config.ReasonNotReady), say(config.ReasonNotReady)); n != nil {
		t.Errorf("queued: %v", n)
	}
	for _, before := range []*corev1.Node{testNode("uid1", "192.0.2.1"), say(config.ReasonNotReady)} {
		if n := f.queuedAfter(t, before, say(config.ReasonNoHostSubnet)); len(n) != 1 {
			t.Errorf("queued: %v", n)
		}
	}
}
