package main

import (
	"fmt"
	"net/netip"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/networkpolicy"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/pkg/sdn/policy"
	"github.com/ovsdn/ovsdn/test/bareagent"
)

// policyFigure: what network policies cost the agent, from objects to flows.
func policyFigure() figure {
	return figure{
		name:  "policy",
		about: "network policies: many rules compiled, how that grows, a pod among 10,000 pods and 1,000 policies, and the engine's memory",
		run: func(b *B) {
			b.policyRules()
			b.policyGrowth()
			b.policyPod()
			b.policyMemory()
		},
	}
}

// policyNode is a node whose policies are compiled.
type policyNode struct {
	b        *B
	engine   *policy.Engine
	compiler *networkpolicy.Compiler
}

func (b *B) newPolicyNode() *policyNode {
	node := podNetwork()
	node.Mode = config.ModeNetworkPolicy
	engine := policy.New()
	return &policyNode{b, engine, networkpolicy.NewCompiler(node, engine)}
}

// learn adds a cluster, and attaches its pods on this node.
func (j *policyNode) learn(c *cluster) {
	for _, ns := range c.namespaces {
		j.engine.SetNamespace(ns.Name, ns.Labels)
	}
	for _, p := range c.pods {
		j.engine.SetPod(policy.NewPod(p))
		if p.Spec.NodeName == bareagent.NodeName {
			j.attach(policy.NewPod(p))
		}
	}
	for _, p := range c.policies {
		j.b.must(j.engine.SetNetworkPolicy(p))
	}
}

func (j *policyNode) attach(p policy.Pod) {
	owner, addr := pipeline.Owner{Kind: pipeline.KindPod, Key: p.Namespace + "/" + p.Name}, p.Addrs[0]
	bytes := addr.As4()
	j.compiler.AddSandbox(p.PodKey, owner, pipeline.Pod{OFPort: 10 + int(bytes[2])<<8 + int(bytes[3]), MAC: config.MAC(addr), Addrs: p.Addrs})
	j.engine.Attach(p.PodKey, p.Addrs...)
}

// compile returns the changes of the flows that the clauses come to.
func (j *policyNode) compile(clauses []policy.Clause) []flowstore.Change {
	changes := make([]flowstore.Change, len(clauses))
	for i, p := range clauses {
		changes[i].Owner, changes[i].State = j.compiler.Compile(p)
	}
	return changes
}

func countFlows(changes []flowstore.Change) (n int) {
	for _, c := range changes {
		n += len(c.State.Flows)
	}
	return n
}

// policyRules: 100 rules of 502 addresses, half of which all rules share. The floor compiles the same flows of existing rules.
func (b *B) policyRules() {
	const rules = 100
	c := rulesOf(rules)
	var ours, floor []time.Duration
	var allocated, floorAllocated []float64
	flows := 0
	for i := range b.samples {
		b.step("rules: %d of %d", i+1, b.samples)
		j := b.newPolicyNode()
		j.learn(&cluster{namespaces: c.namespaces, pods: c.pods})
		j.engine.Drain()
		var clauses []policy.Clause
		took, bytes := b.costs(func() {
			for _, p := range c.policies {
				b.must(j.engine.SetNetworkPolicy(p))
			}
			clauses = j.engine.Drain()
			flows = countFlows(j.compile(clauses))
		})
		ours, allocated = append(ours, took), append(allocated, bytes)
		took, bytes = b.costs(func() { j.compile(clauses) })
		floor, floorAllocated = append(floor, took), append(floorAllocated, bytes)
	}
	scenario := fmt.Sprintf("%d rules × 502 addresses, %d flows", rules, flows)
	b.record(scenario, "ms", seriesOf("ours", milliseconds(ours)), seriesOf("flows alone", milliseconds(floor), within(30, "ms")))
	b.record(scenario, "MB", seriesOf("ours", allocated), seriesOf("flows alone", floorAllocated, within(20, "MB")))
}

// costs measures time and allocated megabytes. What others have left for the garbage collector is not part of it.
func (b *B) costs(do func()) (time.Duration, float64) {
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	do()
	took := time.Since(start)
	runtime.ReadMemStats(&after)
	return took, float64(after.TotalAlloc-before.TotalAlloc) / 1e6
}

// policyGrowth: n policies in n namespaces of ten pods each, one of which is here. What they are measured beside is ten times what a tenth of them costs.
func (b *B) policyGrowth() {
	flows, times := map[int]float64{}, map[int][]time.Duration{}
	sizes := []int{10, 100, 1000}
	for i := range b.rounds {
		for _, n := range sizes {
			b.step("growth: %d policies, %d of %d", n, i+1, b.rounds)
			c := clusterOf(n, 1)
			j := b.newPolicyNode()
			took, _ := b.costs(func() {
				j.learn(c)
				flows[n] = float64(countFlows(j.compile(j.engine.Drain())))
			})
			times[n] = append(times[n], took)
		}
	}
	for i, n := range sizes[1:] {
		tenth := sizes[i]
		scenario, times10 := fmt.Sprintf("%d policies, %d pods", n, 10*n), fmt.Sprintf("10 × %d policies", tenth)
		b.record(scenario, "flows", seriesOf("ours", []float64{flows[n]}), seriesOf(times10, []float64{10 * flows[tenth]}, atMost(1.1)))
		expected := milliseconds(times[tenth])
		for k := range expected {
			expected[k] *= 10
		}
		b.record(scenario, "ms", seriesOf("ours", milliseconds(times[n])), seriesOf(times10, expected, atMost(2)))
	}
}

// policyPod: the CPU time of the agent for a new pod, from the watch's event to its flows on the switch: a pod on another node, where it is a
// peer of ten policies, and on this node. The floor is the same pod without policies.
func (b *B) policyPod() {
	j, none := b.newPolicyNode(), b.newPolicyNode()
	c := bigCluster()
	j.learn(c)
	none.learn(&cluster{namespaces: c.namespaces})
	with, without := b.newSwitchNode(j), b.newSwitchNode(none)
	with.sync()
	for _, where := range []struct {
		name, node string
		at         netip.Addr
	}{
		{"a pod elsewhere", "elsewhere", netip.MustParseAddr("10.131.0.7")},
		{"a pod of this node", bareagent.NodeName, netip.MustParseAddr("10.128.15.7")},
	} {
		added := policy.NewPod(podObject(c.namespaces[7].Name, "added", frontend, where.node, where.at))
		var ours, floor []time.Duration
		for i := range b.samples {
			b.step("%s: %d of %d", where.name, i+1, b.samples)
			ours = append(ours, with.add(added, where.node == bareagent.NodeName))
			floor = append(floor, without.add(added, where.node == bareagent.NodeName))
		}
		b.record(where.name+" comes, "+c.String(), "ms of CPU", seriesOf("ours", milliseconds(ours)),
			seriesOf("no policies", milliseconds(floor), within(2, "ms")))
	}
}

// bigCluster has 200 pods on this node.
func bigCluster() *cluster { return clusterOf(1000, 5) }

func (c *cluster) String() string {
	return fmt.Sprintf("%d pods, %d namespaces, %d policies", len(c.pods), len(c.namespaces), len(c.policies))
}

// switchNode is a policyNode with its flows on a switch.
type switchNode struct {
	*policyNode
	store *flowstore.Store
}

func (b *B) newSwitchNode(j *policyNode) *switchNode {
	_, native := b.newBridge()
	k := &switchNode{j, flowstore.New(native)}
	go func() { _ = k.store.Run(b.Context()) }() // ends with the figure's context
	return k
}

func (k *switchNode) sync(more ...flowstore.Change) {
	for _, commit := range k.store.SetAll(append(k.compile(k.engine.Drain()), more...)...) {
		k.b.must(commit.Wait(k.b.Context()))
	}
}

// add returns the processor time that it takes to add the pod, which is taken away again.
func (k *switchNode) add(p policy.Pod, here bool) time.Duration {
	runtime.GC()
	before := processorTime()
	k.engine.SetPod(p)
	if here {
		k.attach(p)
	}
	k.sync()
	took := processorTime() - before
	k.engine.Detach(p.PodKey)
	k.engine.DeletePod(p.PodKey)
	k.sync()
	return took
}

// processorTime is what this process has used, vswitchd's not counted.
func processorTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t) // fails for unknown clocks only
	return time.Duration(t.Nano())
}

// policyMemory: the engine's memory, beside that of its objects, which the watch holds.
func (b *B) policyMemory() {
	empty := heap()
	c := bigCluster()
	objects := heap()
	j := b.newPolicyNode()
	j.learn(c)
	j.engine.Drain()
	engine := heap()
	runtime.KeepAlive(c)
	runtime.KeepAlive(j)
	b.record("the engine's memory, "+c.String(), "MB",
		seriesOf("ours", []float64{engine - objects}), seriesOf("the objects", []float64{objects - empty}))
}

// heap is what lives, in megabytes.
func heap() float64 {
	runtime.GC()
	runtime.GC() // what finalizers held
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc) / 1e6
}
