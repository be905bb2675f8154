package pods

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
)

// The points at which an ADD can fail or die. Behind allocate, flows and sync each run beside the rest, and configure beside add port.
func addPoints() []string {
	var points []string
	for _, step := range []string{"allocate", "sync", "create", "configure", "add port", "flows"} {
		points = append(points, "before "+step, "after "+step)
	}
	return points
}

func delPoints() []string {
	var points []string
	for _, step := range []string{"delete flows", "delete port", "delete", "release"} {
		points = append(points, "before "+step, "after "+step)
	}
	return points
}

func TestFailedAddLeavesNothing(t *testing.T) {
	n := newNode(t)
	a, _ := n.start(t)
	pod := newNetns(t)
	req := n.addPod("web", pod)
	for _, point := range addPoints() {
		if point == "after allocate" {
			continue // an allocation that fails leaves nothing by itself, see package ipam
		}
		t.Run(point, func(t *testing.T) {
			a.faults.at(point, false)
			if _, err := a.Add(t.Context(), req); !errors.Is(err, errInjected) && code(err) != types.ErrIOFailure {
				t.Errorf("got %v", err)
			}
			n.wantClean(t)
			if got := devices(t, pod); !slices.Equal(got, []string{"lo"}) {
				t.Errorf("devices in the pod: %v", got)
			}
		})
		t.Run("time is over "+point, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			a.faults.cancelAt(point, cancel)
			if _, err := a.Add(ctx, req); err == nil {
				t.Error("no error")
			}
			n.wantClean(t)
		})
	}
	add(t, a, req)
	del(t, a, req)
	n.wantClean(t)
}

// A step of DEL fails, so the runtime repeats DEL.
func TestFailedDelIsRepeated(t *testing.T) {
	n := newNode(t)
	a, _ := n.start(t)
	req := n.addPod("web", newNetns(t))
	for _, point := range delPoints() {
		t.Run(point, func(t *testing.T) {
			add(t, a, req)
			a.faults.at(point, false)
			if err := a.Del(t.Context(), req); !errors.Is(err, errInjected) && code(err) != types.ErrIOFailure {
				t.Errorf("got %v", err)
			}
			del(t, a, req)
			n.wantClean(t)
		})
	}
}

// The agent dies between any two steps. Its successor makes good of it, and DEL, which the runtime repeats, succeeds.
func TestDeadAgent(t *testing.T) {
	for verb, points := range map[string][]string{"ADD": addPoints(), "DEL": delPoints()} {
		for _, point := range points {
			t.Run(verb+" "+point, func(t *testing.T) {
				n := newNode(t)
				pod := newNetns(t)
				req := n.addPod("web", pod)
				first, stop := n.start(t)
				if verb == "DEL" {
					add(t, first, req)
				}
				first.faults.at(point, true)
				var err error
				if verb == "ADD" {
					_, err = first.Add(t.Context(), req)
				} else {
					err = first.Del(t.Context(), req)
				}
				if err == nil {
					t.Fatal("no error")
				}
				stop()

				second, _ := n.start(t)
				// The store may not have replaced the flows yet.
				left := slices.DeleteFunc(n.residue(t), func(r string) bool { return strings.HasPrefix(r, "flow ") })
				if len(second.Pods()) == 0 && len(left) > 0 {
					t.Errorf("the successor left %v", left)
				}
				del(t, second, req)
				n.wantClean(t)
				if got := devices(t, pod); !slices.Equal(got, []string{"lo"}) {
					t.Errorf("devices in the pod: %v", got)
				}
			})
		}
	}
}

func TestParallel(t *testing.T) {
	parallel(t, newNode(t), 32)
}

func parallel(t *testing.T, n *node, pods int) {
	t.Helper()
	a, _ := n.start(t)
	requests := make([]*cniserver.Request, pods)
	for i := range requests {
		requests[i] = n.addPod(fmt.Sprintf("pod%d", i), newNetns(t))
	}
	var wg sync.WaitGroup
	for _, req := range requests {
		wg.Go(func() {
			for range 2 {
				if _, err := a.Add(t.Context(), req); err != nil {
					t.Error(err)
				}
				if err := a.Del(t.Context(), req); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	n.wantClean(t)
}

// ADD and DEL of one sandbox at the same time: each sees the other's all or nothing.
func TestOneSandboxInTurn(t *testing.T) {
	n := newNode(t)
	a, _ := n.start(t)
	req := n.addPod("web", newNetns(t))
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := a.Add(t.Context(), req); err != nil && code(err) != types.ErrInvalidEnvironmentVariables {
				t.Errorf("ADD: %v", err)
			}
		})
		wg.Go(func() {
			if err := a.Del(t.Context(), req); err != nil {
				t.Errorf("DEL: %v", err)
			}
		})
	}
	wg.Wait()
	del(t, a, req)
	n.wantClean(t)
}

// While Open vSwitch is away requests fail in time, and the runtime's next ones succeed.
func TestOVSAway(t *testing.T) {
	n := newNode(t)
	a, _ := n.start(t)
	a.undoTime = 20 * time.Millisecond
	req, late := n.addPod("web", newNetns(t)), n.addPod("late", newNetns(t))
	add(t, a, req)
	away := n.bridge.(interface{ SetUnavailable(bool) })
	away.SetUnavailable(true)
	if _, err := a.Add(t.Context(), late); code(err) != types.ErrTryAgainLater {
		t.Errorf("ADD: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a.faults.cancelAt("after delete", cancel)
	if err := a.Del(ctx, req); code(err) != types.ErrTryAgainLater {
		t.Errorf("DEL: %v", err)
	}
	if got := devices(t, n.host); slices.ContainsFunc(got, func(d string) bool { return strings.HasPrefix(d, "veth") }) {
		t.Errorf("devices could have gone without Open vSwitch: %v", got)
	}
	away.SetUnavailable(false)
	a.store.Resync()
	del(t, a, req)
	add(t, a, late)
	del(t, a, late)
	n.wantClean(t)
}

// A request that hangs holds up neither other sandboxes nor, past their time, requests of its own sandbox.
func TestHungRequestHoldsUpOnlyItsSandbox(t *testing.T) {
	n := newNode(t)
	a, _ := n.start(t)
	hung, other := n.addPod("hung", newNetns(t)), n.addPod("other", newNetns(t))
	unlock, err := a.sandboxes.lock(t.Context(), hung.ContainerID)
	if err != nil {
		t.Fatal(err)
	}
	add(t, a, other)
	del(t, a, other)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := a.Del(ctx, hung); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("DEL of the hung sandbox: %v", err)
	}
	unlock()
	add(t, a, hung)
	del(t, a, hung)
	if len(a.sandboxes.locks) != 0 {
		t.Errorf("%d locks are left", len(a.sandboxes.locks))
	}
}
