package cni

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/ns"

	"github.com/ovsdn/ovsdn/test/seed"
)

const (
	// pairsVariable is the environment variable that sets how many ADD/DEL pairs TestKilledAgent makes.
	pairsVariable = "OVSDN_TEST_PAIRS"
	defaultPairs  = 200

	// morePairs bounds those that are made beyond, until the agent has been killed at every step.
	morePairs = 4000

	workers = 16

	// Every so many pairs a pod's namespace goes before DEL comes, and CHECK is asked.
	deletedEvery, checkEvery = 7, 11
)

// storm is what the workers share.
type storm struct {
	*rig
	list  *libcni.NetworkConfigList
	todo  atomic.Int64  // pairs
	made  atomic.Int64  // pairs
	retry atomic.Int64  // requests that were repeated
	done  chan struct{} // a request has succeeded

	mu    sync.Mutex
	live  map[netip.Addr]string // its pod, from ADD's answer to the first DEL
	kills map[step]int
}

// atRandom is in kills what no step is: a moment.
const atRandom step = "at random"

// ADD and DEL by many workers, while the agent is killed at every step and at random: in the end nothing is left over or missing, and no address
// was ever allocated twice.
func TestKilledAgent(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: hundreds of pods while the agent is killed")
	}
	pairs := defaultPairs
	if text := os.Getenv(pairsVariable); text != "" {
		var err error
		if pairs, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	r := newRig(t)
	addUplink(t, r.NS)
	before := r.state(t)
	s := &storm{rig: r, list: r.list(t, "1.0.0", nil), live: map[netip.Addr]string{}, kills: map[step]int{}, done: make(chan struct{}, 2*workers)}
	s.todo.Store(int64(pairs))
	r.agent.kill()

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	killed := make(chan struct{})
	go func() {
		defer close(killed)
		s.killAgents(ctx, t)
	}()
	begin := time.Now()
	var wg sync.WaitGroup
	survivors := make([]*pod, workers)
	for w := range workers {
		survivors[w] = newPod(t, []string{"survivor", router + "-survivor"}[w%2]+fmt.Sprintf("-%d", w))
		wg.Go(func() {
			s.add(t, survivors[w])
			for i := 0; s.wantsMore(); i++ {
				s.pair(t, w, i)
			}
		})
	}
	wg.Wait()
	took := time.Since(begin)
	cancel()
	<-killed
	s.reportKills(t, took)

	// Too little: what was attached all the time is as it was made.
	r.config.DieAt = ""
	r.start(t)
	for _, p := range survivors {
		if err := r.cni.CheckNetworkList(t.Context(), s.list, p.runtimeConf()); err != nil {
			t.Errorf("CHECK of %s: %v", p.name, err)
		}
	}
	for _, p := range survivors {
		s.del(t, p)
	}
	// Too much.
	r.wantState(t, before)
	r.stop(t)
	r.start(t)
	r.wantState(t, before)
}

// reportKills logs the kills and requests, and checks that the agent was killed at every step.
func (s *storm) reportKills(t *testing.T, took time.Duration) {
	t.Helper()
	total := 0
	for _, at := range append(steps(), atRandom) {
		total += s.kills[at]
		if s.kills[at] == 0 {
			t.Errorf("the agent was never killed %s", at)
		}
	}
	t.Logf("%d pairs by %d workers in %s, the agent killed %d times, %d requests repeated",
		s.made.Load(), workers, took.Round(time.Second), total, s.retry.Load())
	t.Logf("kills: %v", s.kills)
}

// wantsMore reports whether to make another pair: a requested one, or one for a step that has killed no agent.
func (s *storm) wantsMore() bool {
	left := s.todo.Add(-1)
	return left >= 0 || left >= -morePairs && !s.killedAtEveryStep()
}

func (s *storm) killedAtEveryStep() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !slices.ContainsFunc(append(steps(), atRandom), func(at step) bool { return s.kills[at] == 0 })
}

// killAgents starts agents until the context ends. Each dies at its step, or else at any moment after it has served some
// requests.
func (s *storm) killAgents(ctx context.Context, t *testing.T) {
	random := seed.Rand(t)
	for ctx.Err() == nil {
		s.config.DieAt = s.rarestStep()
		s.config.DieAfter = 1 + random.Int64N(2*workers)
		p, err := s.launch()
		if err != nil {
			t.Error(err)
			return
		}
		if s.outlives(ctx, p, 1+random.IntN(4*workers), time.Duration(random.IntN(20))*time.Millisecond) {
			s.killed(atRandom)
		} else if ctx.Err() == nil {
			s.killed(s.config.DieAt)
			if state := p.cmd.ProcessState; state.Exited() {
				t.Errorf("the agent ended by itself: %v", state)
			}
		}
		p.kill()
	}
}

// rarestStep returns the step at which the fewest agents died until now, so that no more pairs are needed than it takes to reach each step.
func (s *storm) rarestStep() step {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.MinFunc(steps(), func(a, b step) int { return cmp.Compare(s.kills[a], s.kills[b]) })
}

func (s *storm) killed(at step) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kills[at]++
}

// outlives reports whether the agent is still alive after so many requests and a moment.
func (s *storm) outlives(ctx context.Context, p *process, requests int, moment time.Duration) bool {
	var over <-chan time.Time
	for {
		select {
		case <-p.ended:
			return false
		case <-ctx.Done():
			return false
		case <-s.done:
			if requests--; requests == 0 {
				over = time.After(moment)
			}
		case <-over:
			return true
		}
	}
}

// pair attaches a new sandbox and detaches it.
func (s *storm) pair(t *testing.T, worker, i int) {
	netns, err := ns.TempNetNS()
	if err != nil {
		t.Error(err)
		return
	}
	p := &pod{name: []string{"pod", router}[i%2] + fmt.Sprintf("-%d-%d", worker, i), netns: netns}
	s.add(t, p)
	if i%checkEvery == 0 {
		s.check(t, p)
	}
	deleted := i%deletedEvery == 0
	if deleted {
		netns.Close()
	}
	s.del(t, p)
	if !deleted {
		if left := devicesOf(t, netns); len(left) > 1 {
			t.Errorf("in the namespace of %s after DEL: %v", p.name, left)
		}
		netns.Close()
	}
	s.made.Add(1)
}

// add repeats ADD until it succeeds, each time for a new sandbox after a DEL of the previous one, as kubelet does.
func (s *storm) add(t *testing.T, p *pod) {
	deadline := time.Now().Add(patience)
	for attempt := 0; ; attempt++ {
		p.id = fmt.Sprintf("%s-%d", p.name, attempt)
		result, err := s.cni.AddNetworkList(context.Background(), s.list, p.runtimeConf())
		if err == nil {
			s.lives(t, p, result)
			s.succeeded()
			return
		}
		if !s.mayRepeat(t, "ADD", p, err, deadline) {
			return
		}
		s.del(t, p)
	}
}

// lives records the pod's address, which no other pod may have.
func (s *storm) lives(t *testing.T, p *pod, result types.Result) {
	r, err := current.NewResultFromResult(result)
	if err != nil || len(r.IPs) != 1 {
		t.Errorf("result of ADD: %v (%v)", result, err)
		return
	}
	addr, _ := netip.AddrFromSlice(r.IPs[0].Address.IP)
	s.mu.Lock()
	defer s.mu.Unlock()
	if other, taken := s.live[addr.Unmap()]; taken {
		t.Errorf("%s was given to %s while %s has it", addr, p.id, other)
	}
	s.live[addr.Unmap()] = p.id
}

func (s *storm) dies(p *pod) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for addr, id := range s.live {
		if id == p.id {
			delete(s.live, addr)
		}
	}
}

// del repeats DEL until it succeeds.
func (s *storm) del(t *testing.T, p *pod) {
	s.dies(p)
	rt := p.runtimeConf()
	deadline := time.Now().Add(patience)
	for {
		err := s.cni.DelNetworkList(context.Background(), s.list, rt)
		if err == nil || !s.mayRepeat(t, "DEL", p, err, deadline) {
			s.succeeded()
			return
		}
	}
}

func (s *storm) succeeded() {
	select {
	case s.done <- struct{}{}:
	default: // the next count is later
	}
}

// check repeats CHECK while there is no agent.
func (s *storm) check(t *testing.T, p *pod) {
	deadline := time.Now().Add(patience)
	for {
		err := s.cni.CheckNetworkList(context.Background(), s.list, p.runtimeConf())
		if err == nil || !s.mayRepeat(t, "CHECK", p, err, deadline) {
			return
		}
	}
}

// mayRepeat reports whether the request failed because no agent answered, and waits a little.
func (s *storm) mayRepeat(t *testing.T, verb string, p *pod, err error, deadline time.Time) bool {
	var e *types.Error
	if !errors.As(err, &e) || e.Code != types.ErrTryAgainLater {
		t.Errorf("%s of %s: %v", verb, p.id, err)
		return false
	}
	if time.Now().After(deadline) {
		t.Errorf("%s of %s fails all the time: %v", verb, p.id, err)
		return false
	}
	s.retry.Add(1)
	<-time.After(20 * time.Millisecond)
	return true
}
