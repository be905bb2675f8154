package networkpolicy

import (
	"context"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// slowCompile is the duration from which a compilation is logged. One object takes less: budgets limit its cost.
const slowCompile = time.Second

// CompileTime summarizes the durations of compilations under the lock. A pod that starts waits for at most one of them.
type CompileTime struct {
	Count   uint64
	Sum     time.Duration
	Longest time.Duration
}

// durations aggregates durations. It is safe for concurrent use.
type durations struct {
	mu  sync.Mutex
	sum CompileTime
}

func (d *durations) add(ctx context.Context, took time.Duration) {
	if took >= slowCompile {
		klog.FromContext(ctx).Info("Compiled policies slowly; pods that start are delayed", "duration", took, "action", "look for very large NetworkPolicies (docs/policies.md#budgets)")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sum.Count++
	d.sum.Sum += took
	d.sum.Longest = max(d.sum.Longest, took)
}

// CompileTime returns the durations of compilations since the agent started.
func (p *Policies) CompileTime() CompileTime {
	p.compileTime.mu.Lock()
	defer p.compileTime.mu.Unlock()
	return p.compileTime.sum
}
