package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/ovsdn/ovsdn/test/ovstest"
)

// addFigure: what a container runtime waits for when it makes and removes a pod. Ours and the bridge plugin run as a
// runtime runs them, plugin start included; the floor is what is left when all is taken away that can be.
func addFigure() figure {
	return figure{
		name:  "add",
		about: "CNI ADD and DEL, one by one and 16 at a time, beside the least a CNI on OVS must do and the bridge plugin",
		run:   runAdd,
	}
}

const (
	parallelPods = 16
	wavePods     = 2 * parallelPods // made at 16 at a time, then removed
	samplesAWave = 10               // of the one-by-one kind
)

// contender sets pods' networks up and takes them down, each call timed.
type contender interface {
	add(context.Context, *sandbox) (time.Duration, error)
	del(context.Context, *sandbox) (time.Duration, error)
}

// entrant is a contender at work: its pods to be, and its times.
type entrant struct {
	contender
	name string
	pods []*sandbox

	adds, dels               []time.Duration // one by one
	waveAdds, waveDels       []time.Duration // among 16
	addsASecond, delsASecond []float64
}

func runAdd(b *B) {
	node, plain := b.newNode(), b.plainBridge()
	pods := [][]*sandbox{b.sandboxes(wavePods), b.sandboxes(wavePods), b.sandboxes(wavePods)}
	present := 0
	for _, n := range []int{1, 100, 500} {
		b.progress("making %d pods, to have %d", n-present, n)
		for _, c := range []contender{node.runtime, plain} {
			_, err := wave(b.Context(), b.sandboxes(n-present), c.add)
			b.must(err)
		}
		present = n
		floor, stop := b.newFloor(node.ovs, parallelPods)
		b.compareAdds(node.ovs, present, []*entrant{
			{name: "ours", contender: node.runtime, pods: pods[0]},
			{name: "floor", contender: floor, pods: pods[1]},
			{name: "bridge", contender: plain, pods: pods[2]},
		})
		stop()
	}
}

// compareAdds measures the entrants alternately: ours, the floor, the bridge plugin.
func (b *B) compareAdds(s *ovstest.Switch, present int, all []*entrant) {
	for n := range b.samples {
		b.step("%d ports: pod %d of %d, one by one", present, n+1, b.samples)
		for _, e := range turns(all, n) {
			b.must(e.one(b.Context()))
			b.settle(s)
		}
	}
	waves := (b.samples + samplesAWave - 1) / samplesAWave
	for n := range waves {
		b.step("%d ports: wave %d of %d, %d at a time", present, n+1, waves, parallelPods)
		for _, e := range turns(all, n) {
			b.must(e.wave(b.Context()))
			b.settle(s)
		}
	}
	bounds := boundsWith(present)
	for _, r := range []struct {
		what, unit    string
		of            func(*entrant) []float64
		floor, bridge []bound
	}{
		{"ADD", "ms", func(e *entrant) []float64 { return milliseconds(e.adds) }, bounds.addFloor, bounds.addBridge},
		{"DEL", "ms", func(e *entrant) []float64 { return milliseconds(e.dels) }, []bound{atMost(1.2)}, nil},
		{"ADD, 16 at a time", "pods/s", func(e *entrant) []float64 { return e.addsASecond }, nil, bounds.rateBridge},
		{"ADD, 16 at a time to one by one", "×", func(e *entrant) []float64 { return []float64{e.gain()} }, nil, nil},
		{"ADD, among 16", "ms", func(e *entrant) []float64 { return milliseconds(e.waveAdds) }, nil, nil},
		{"DEL, 16 at a time", "pods/s", func(e *entrant) []float64 { return e.delsASecond }, nil, nil},
		{"DEL, among 16", "ms", func(e *entrant) []float64 { return milliseconds(e.waveDels) }, nil, nil},
	} {
		ports := fmt.Sprintf("%d ports", present)
		if present == 1 {
			ports = "1 port"
		}
		b.record(r.what+", "+ports, r.unit, seriesOf(all[0].name, r.of(all[0])),
			seriesOf(all[1].name, r.of(all[1]), r.floor...), seriesOf(all[2].name, r.of(all[2]), r.bridge...))
	}
}

// addBounds are of ADD, one by one and 16 at a time.
type addBounds struct{ addFloor, addBridge, rateBridge []bound }

// boundsWith are the bounds with so many ports present. With many, vswitchd takes most of the time, and the bridge plugin, which has no
// vswitchd, is no reference.
func boundsWith(present int) addBounds {
	if present < 100 {
		return addBounds{addFloor: []bound{atMost(2)}, addBridge: []bound{below(1)}, rateBridge: []bound{atLeast(2)}}
	}
	return addBounds{addFloor: []bound{atMost(1.3)}}
}

// gain is how many pods 16 at a time make while one by one makes one: what those who wait together share.
func (e *entrant) gain() float64 {
	return seriesOf(e.name, e.addsASecond).Median * seriesOf(e.name, seconds(e.adds)).Median
}

// settle waits until vswitchd has released removed ports, for which a DEL does not wait: they must not cost the next contender time.
func (b *B) settle(s *ovstest.Switch) {
	b.Helper()
	s.VSCtl(b, "set", "open_vswitch", ".", fmt.Sprintf("external-ids:settled=%d", time.Now().UnixNano()))
}

// one makes and removes one pod.
func (e *entrant) one(ctx context.Context) error {
	took, err := e.add(ctx, e.pods[0])
	if err != nil {
		return fmt.Errorf("%s: ADD: %w", e.name, err)
	}
	e.adds = append(e.adds, took)
	if took, err = e.del(ctx, e.pods[0]); err != nil {
		return fmt.Errorf("%s: DEL: %w", e.name, err)
	}
	e.dels = append(e.dels, took)
	return nil
}

// wave makes and removes many.
func (e *entrant) wave(ctx context.Context) error {
	for _, half := range []struct {
		verb  string
		do    func(context.Context, *sandbox) (time.Duration, error)
		times *[]time.Duration
		rates *[]float64
	}{
		{"ADD", e.add, &e.waveAdds, &e.addsASecond},
		{"DEL", e.del, &e.waveDels, &e.delsASecond},
	} {
		start := time.Now()
		times, err := wave(ctx, e.pods, half.do)
		if err != nil {
			return fmt.Errorf("%s: %s, %d at a time: %w", e.name, half.verb, parallelPods, err)
		}
		*half.rates = append(*half.rates, float64(len(e.pods))/time.Since(start).Seconds())
		*half.times = append(*half.times, times...)
	}
	return nil
}

// wave does one thing with all pods, 16 at a time.
func wave(ctx context.Context, pods []*sandbox, do func(context.Context, *sandbox) (time.Duration, error)) ([]time.Duration, error) {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallelPods)
	var mu sync.Mutex
	var times []time.Duration
	for _, s := range pods {
		group.Go(func() error {
			took, err := do(ctx, s)
			mu.Lock()
			defer mu.Unlock()
			times = append(times, took)
			return err
		})
	}
	err := group.Wait()
	return times, err
}
