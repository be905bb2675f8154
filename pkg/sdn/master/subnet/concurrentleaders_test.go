package subnet

import (
	"maps"
	"slices"
	"testing"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/test/seed"
)

func TestSync_concurrentLeaders(t *testing.T) {
	names := []string{"a", "bb", "ccc", "dddd", "eeeee", "ffffff", "ggggggg", "hhhhhhhh"}
	seed.Fix(t)
	rapid.Check(t, func(t *rapid.T) {
		server := &apiServer{
			hostSubnets: map[string]*networkv1.HostSubnet{}, nodes: map[string]*corev1.Node{},
			retention: rapid.SampledFrom([]time.Duration{0, time.Hour}).Draw(t, "retention"),
		}
		defer func() { // no goroutine may stay suspended
			for len(server.tasks) > 0 {
				server.resume(server.tasks[0])
			}
		}()
		leaders := []*leader{server.newLeader(t), server.newLeader(t)}
		anyLeader := func(t *rapid.T) int { return rapid.IntRange(0, len(leaders)-1).Draw(t, "leader") }
		externals := []string{"x1", "x2"}
		names := append(slices.Clone(names), externals...)
		anyName, anyExternal := rapid.SampledFrom(names), rapid.SampledFrom(externals)
		sync := func(t *rapid.T) { server.begin(leaders[anyLeader(t)], anyName.Draw(t, "name")) }
		resume := func(t *rapid.T) {
			if len(server.tasks) > 0 {
				server.resume(server.tasks[rapid.IntRange(0, len(server.tasks)-1).Draw(t, "task")])
			}
		}
		updateCaches := func(t *rapid.T) { server.updateCaches(t, leaders[anyLeader(t)], 3, 3) }
		t.Repeat(map[string]func(*rapid.T){
			"sync": sync, "sync more": sync,
			"resume": resume, "resume more": resume, "resume most": resume,
			"update caches": updateCaches, "update caches more": updateCaches,
			"add or delete a node": func(t *rapid.T) {
				name := anyName.Draw(t, "name")
				if slices.Contains(externals, name) {
					return
				}
				if server.nodes[name] == nil {
					server.addNode(name)
				} else {
					server.deleteNode(name)
				}
			},
			"add, delete or reset an external machine": func(t *rapid.T) {
				name := anyExternal.Draw(t, "name")
				switch o := server.hostSubnets[name]; {
				case o == nil:
					server.addExternal(name)
				case rapid.Bool().Draw(t, "reset"):
					o = o.DeepCopy()
					o.Subnet = ""
					server.write(o)
				default:
					server.deleteExternal(name)
				}
			},
			"another leader": func(t *rapid.T) { // the tasks of the previous one continue
				leaders[anyLeader(t)] = server.newLeader(t)
			},
			"": func(t *rapid.T) {
				if server.overlap != nil {
					t.Fatal(server.overlap)
				}
			},
		})

		// Finally one leader with up-to-date caches syncs all names.
		for len(server.tasks) > 0 {
			server.resume(server.tasks[0])
		}
		last := leaders[0]
		for range 20 {
			for _, name := range names {
				for last.subnetChanges < len(server.subnetLog) || last.nodeChanges < len(server.nodeLog) {
					server.updateCaches(t, last, 1000, 1000)
				}
				server.begin(last, name)
				for len(server.tasks) > 0 {
					server.resume(server.tasks[0])
				}
			}
		}
		if server.overlap != nil {
			t.Fatal(server.overlap)
		}
		server.wantConfirmed(t)
	})
}

// wantConfirmed checks that all HostSubnets are confirmed, and that as many nodes as possible have one.
func (server *apiServer) wantConfirmed(t *rapid.T) {
	confirmed, external := 0, 0
	for name, o := range server.hostSubnets {
		switch node := server.nodes[name]; {
		case config.IsExternal(o):
			external++
			if config.IsProposed(o) {
				t.Fatalf("got HostSubnet %s %+v, want it confirmed for its Node", name, o)
			}
			if o.Subnet == "" {
				continue
			}
		case node == nil && server.retention > 0 && config.IsRetained(o):
			continue
		case node == nil:
			t.Fatalf("got HostSubnet %s without a Node, want it deleted", name)
		case config.IsProposed(o) || config.IsRetained(o) || nodeUID(o) != node.UID:
			t.Fatalf("got HostSubnet %s %+v, want it confirmed for its Node", name, o)
		}
		confirmed++
	}
	if want := min(len(server.nodes)+external, 6); confirmed != want {
		t.Fatalf("got %d confirmed subnets for nodes %v, want %d", confirmed, slices.Sorted(maps.Keys(server.nodes)), want)
	}
}
