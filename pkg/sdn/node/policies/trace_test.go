package policies

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/oracle"
)

var (
	seeds  = flag.Int("seeds", 24, "how many random clusters, from -seed on")                //nolint:gochecknoglobals // a test binary parses its flags before any test runs
	seed   = flag.Uint64("seed", 1, "the first random cluster; with -seeds=1 the only one")  //nolint:gochecknoglobals // as above
	sample = flag.Int("sample", 100, "how many questions the switch gets after each change") //nolint:gochecknoglobals // as above
)

// questions are all that can be asked about a world. A pod's own connections to itself never reach the switch.
func questions(w *oracle.World) []oracle.Connection {
	var all []oracle.Connection
	ends := w.Endpoints()
	for _, from := range ends {
		for _, to := range ends {
			if from.Pod == to.Pod || to.Through != "" { // or neither is a pod
				continue
			}
			for _, protocol := range oracle.Protocols() {
				for _, port := range oracle.Ports(protocol) {
					all = append(all, oracle.Connection{From: from, To: to, Protocol: protocol, Port: port})
				}
			}
		}
	}
	return all
}

// some draws n of the questions.
func some(w *oracle.World, r *rand.Rand, n int) []oracle.Connection {
	var drawn []oracle.Connection
	ends, protocols := w.Endpoints(), oracle.Protocols()
	for range n {
		from, to, protocol := ends[r.IntN(len(ends))], ends[r.IntN(len(ends))], protocols[r.IntN(len(protocols))]
		if ports := oracle.Ports(protocol); from.Pod != to.Pod && to.Through == "" {
			drawn = append(drawn, oracle.Connection{From: from, To: to, Protocol: protocol, Port: ports[r.IntN(len(ports))]})
		}
	}
	return drawn
}

// fleet lends out pairs of nodes: as many worlds are looked at at a time as there are processors.
func fleet(t *testing.T) chan *stations {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	idle := make(chan *stations, runtime.GOMAXPROCS(0))
	for range cap(idle) {
		idle <- &stations{all: [2]*station{newStation(t, 0), newStation(t, 1)}}
	}
	return idle
}

// What the switch does with packets in random clusters, every second of them with tenants and every second as on the userspace datapath, is what the oracle says: of a sample after
// every one of fifty changes, of all pairs and ports in the end, and five times of services with endpoints outside of the pod network.
func TestSwitchAgreesWithTheOracle(t *testing.T) {
	idle := fleet(t)
	var asked atomic.Int64
	t.Cleanup(func() { t.Logf("seeds %d to %d: %d questions", *seed, *seed+uint64(*seeds)-1, asked.Load()) }) //nolint:gosec // a flag of ours
	for s := *seed; s < *seed+uint64(*seeds); s++ {                                                           //nolint:gosec // a flag of ours
		t.Run(fmt.Sprintf("seed %d", s), func(t *testing.T) {
			t.Parallel()
			n := <-idle
			defer func() { idle <- n }()
			t.Logf("to look at it again: go test ./pkg/sdn/node/policies -run TestSwitchAgreesWithTheOracle -seeds=1 -seed=%d", s)
			asked.Add(int64(n.grow(t, s)))
		})
	}
}

// grow looks at the world of a seed, and returns how many questions that were.
func (n *stations) grow(t *testing.T, seed uint64) (asked int) {
	t.Helper()
	userspace := seed%4 < 2 // what its tracker can't do
	node := pipeline.Node{Mode: config.ModeNetworkPolicy, StatelessSCTP: userspace, LaterFragments: userspace}
	if seed%2 == 0 {
		node.Mode = config.ModeMultitenant
	}
	n.reset(node)
	r := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // to be repeatable
	w := oracle.NewWorld(seed, n)
	if node.Mode == config.ModeMultitenant {
		w.VNIDs = n.vnids
	}
	compare := func(when string, questions []oracle.Connection) {
		t.Helper()
		n.compare(t, when, w, questions)
		asked += len(questions)
	}
	compare("at first", some(w, r, *sample))
	for i := range 50 {
		what := w.Step(n)
		compare(fmt.Sprintf("step %d, %s", i, what), some(w, r, *sample))
		if i%10 == 9 {
			asked += n.compareServices(t, fmt.Sprintf("step %d, services", i), w, w.Services(r, 8))
		}
	}
	compare("in the end", questions(w))
	t.Logf("%d pods, %d namespaces, %d policies, %d of the cluster, %d questions",
		len(w.Pods), len(w.Namespaces), len(w.Policies), len(w.ClusterPolicies), asked)
	return asked
}

// All of cyclonus' cases, on a switch: after each of their steps all pairs of pods on the ports that they serve, and a sample of all else.
func TestSwitchAgreesOnCases(t *testing.T) {
	idle := fleet(t)
	for _, c := range oracle.Cases() {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			n := <-idle
			defer func() { idle <- n }()
			n.reset(pipeline.Node{Mode: config.ModeNetworkPolicy})
			r := rand.New(rand.NewPCG(1, 1)) //nolint:gosec // to be repeatable
			c.Play(n, func(step int, w *oracle.World) {
				all := slices.DeleteFunc(questions(w), func(c oracle.Connection) bool {
					return c.From.Pod == nil || c.To.Pod == nil || c.Port != 80 && c.Port != 81
				})
				n.compare(t, fmt.Sprintf("step %d", step), w, append(all, some(w, r, *sample)...))
			})
		})
	}
}
