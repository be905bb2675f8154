package networkpolicy

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// A connection to a pod of another node is flushed after the pod's deletion, also if no rule selects the pod.
func TestFlush_deletedPodOfAnotherNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		friend := podObject("b", "friend", "7", "10.129.0.7", nil)
		f := newFixture(t, func(f *fixture) {
			addPolicyWithPeer(f)
			f.pods.Add(friend)
		})
		<-time.After(testTimeout) // the first evaluation is over
		f.attachPod(podObject("a", "web", "2", "", labels("web")), "s1", 3, "10.128.0.5")
		c := tracked(zoneHere, protocolTCP, "10.128.0.5:1000", "10.129.0.7:80")
		f.bridge.Connect(ovs.Connections{Zone: c.Zone, Protocol: c.Protocol, Original: c.Original, Reply: c.Reply})
		<-time.After(testTimeout)
		if n := len(f.bridge.Tracked()); n != 1 {
			t.Fatalf("got %d connections before the pod's deletion, want 1", n)
		}
		f.pods.Delete(friend)
		<-time.After(2 * testTimeout)
		if left := f.bridge.Tracked(); len(left) > 0 {
			t.Errorf("got connections %v, want none", left)
		}
	})
}

// Connections are flushed after the policy that allowed them, or their pod, was deleted.
func TestFlush_deletedPolicyOrPod(t *testing.T) { synctest.Test(t, testFlushDeletedPolicyOrPod) }

func testFlushDeletedPolicyOrPod(t *testing.T) {
	f := newFixture(t, addPolicyWithPeer)
	<-time.After(testTimeout) // the first evaluation is over
	f.attachPod(podObject("a", "web", "2", "", labels("web")), "s1", 3, "10.128.0.5")
	connect := func() {
		c := tracked(zoneHere, protocolTCP, "10.129.0.9:1000", "10.128.0.5:8080")
		f.bridge.Connect(ovs.Connections{Zone: c.Zone, Protocol: c.Protocol, Original: c.Original, Reply: c.Reply})
	}
	left := func(want int) func([]string) error {
		return func([]string) error {
			if n := len(f.bridge.Tracked()); n != want {
				return fmt.Errorf("got %d connections, want %d", n, want)
			}
			return nil
		}
	}
	connect()
	f.networkPolicies.Add(allow("a", "more", "b", 9090))
	f.eventually(has(1, "tp_dst=9090,"))
	<-time.After(testTimeout)
	f.must(left(1)(nil))
	f.networkPolicies.Delete(allow("a", "web", "b", 8080))
	f.eventually(left(0))
	connect()
	f.detachPod("s1")
	f.eventually(left(0))
}
