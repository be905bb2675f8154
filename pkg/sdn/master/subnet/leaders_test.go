package subnet

import (
	"maps"
	"slices"
	"testing"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

func TestNoSubnetIsGivenTwice(t *testing.T) {
	names := []string{"a", "bb", "ccc", "dddd", "eeeee", "ffffff", "ggggggg", "hhhhhhhh"}
	rapid.Check(t, func(t *rapid.T) {
		w := &world{hostSubnets: map[string]*networkv1.HostSubnet{}, nodes: map[string]*corev1.Node{}}
		defer func() { // nobody stays asleep
			for len(w.tasks) > 0 {
				w.wake(w.tasks[0])
			}
		}()
		leaders := []*leader{w.newLeader(t), w.newLeader(t)}
		anyLeader := func(t *rapid.T) int { return rapid.IntRange(0, len(leaders)-1).Draw(t, "leader") }
		externals := []string{"x1", "x2"}
		names := append(slices.Clone(names), externals...)
		anyName, anyExternal := rapid.SampledFrom(names), rapid.SampledFrom(externals)
		sync := func(t *rapid.T) { w.begin(leaders[anyLeader(t)], anyName.Draw(t, "name")) }
		wake := func(t *rapid.T) {
			if len(w.tasks) > 0 {
				w.wake(w.tasks[rapid.IntRange(0, len(w.tasks)-1).Draw(t, "task")])
			}
		}
		learn := func(t *rapid.T) { w.learn(t, leaders[anyLeader(t)], 3, 3) }
		t.Repeat(map[string]func(*rapid.T){
			"sync": sync, "sync more": sync,
			"wake": wake, "wake more": wake, "wake even more": wake,
			"learn": learn, "learn more": learn,
			"add or delete a node": func(t *rapid.T) {
				name := anyName.Draw(t, "name")
				if slices.Contains(externals, name) {
					return
				}
				if w.nodes[name] == nil {
					w.addNode(name)
				} else {
					w.deleteNode(name)
				}
			},
			"add, delete or reset an external machine": func(t *rapid.T) {
				name := anyExternal.Draw(t, "name")
				switch o := w.hostSubnets[name]; {
				case o == nil:
					w.addExternal(name)
				case rapid.Bool().Draw(t, "reset"):
					o = o.DeepCopy()
					o.Subnet = ""
					w.write(o)
				default:
					w.deleteExternal(name)
				}
			},
			"another leader": func(t *rapid.T) { // the former one's tasks go on
				leaders[anyLeader(t)] = w.newLeader(t)
			},
			"": func(t *rapid.T) {
				if w.broken != nil {
					t.Fatal(w.broken)
				}
			},
		})

		// Peace: one leader is left, hears of all and works in turn.
		for len(w.tasks) > 0 {
			w.wake(w.tasks[0])
		}
		last := leaders[0]
		for range 20 {
			for _, name := range names {
				for last.subnets < len(w.subnetLog) || last.nodeSeen < len(w.nodeLog) {
					w.learn(t, last, 1000, 1000)
				}
				w.begin(last, name)
				for len(w.tasks) > 0 {
					w.wake(w.tasks[0])
				}
			}
		}
		if w.broken != nil {
			t.Fatal(w.broken)
		}
		given, external := 0, 0
		for name, o := range w.hostSubnets {
			switch node := w.nodes[name]; {
			case config.IsExternal(o):
				external++
				if config.IsProposed(o) {
					t.Fatalf("%s is not seen to: %+v", name, o)
				}
				if o.Subnet == "" {
					continue
				}
			case node == nil:
				t.Fatalf("%s is left behind", name)
			case config.IsProposed(o) || ownerUID(o) != node.UID:
				t.Fatalf("%s is not seen to: %+v", name, o)
			}
			given++
		}
		if want := min(len(w.nodes)+external, 6); given != want {
			t.Fatalf("%d subnets are given to %v, want %d", given, slices.Sorted(maps.Keys(w.nodes)), want)
		}
	})
}
