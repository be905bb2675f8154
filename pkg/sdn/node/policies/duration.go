package policies

import (
	"context"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// slowCompile is the duration from which a compilation is logged. Budgets bound what one object can cost, and that takes less.
const slowCompile = time.Second

// CompileTime describes how long changes of policies took to compile, each with what it holds up: a pod that starts waits for one of them at most.
type CompileTime struct {
	Count   uint64
	Sum     time.Duration
	Longest time.Duration
}

// durations sums up durations. It is safe for concurrent use.
type durations struct {
	mu  sync.Mutex
	sum CompileTime
}

func (d *durations) add(ctx context.Context, took time.Duration) {
	if took >= slowCompile {
		klog.FromContext(ctx).Info("Compiled policies slowly; pods that start wait for it", "duration", took, "action", "look for very large NetworkPolicies (docs/policies.md#budgets)")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sum.Count++
	d.sum.Sum += took
	d.sum.Longest = max(d.sum.Longest, took)
}

// CompileTime returns how long policies took to compile since the agent started.
func (p *Policies) CompileTime() CompileTime {
	p.compileTime.mu.Lock()
	defer p.compileTime.mu.Unlock()
	return p.compileTime.sum
}
