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
	"github.com/ovsdn/ovsdn/test/tier"
)

// addPoints returns the points at which ADD can fail. After allocate, flows and sync run in parallel to the other steps, and configure to add port.
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

func TestAdd_failureIsCleanedUp(t *testing.T) {
	tier.Parallel(t)
	n := newNode(t)
	a, _ := n.start(t)
	pod := newNetns(t)
	req := n.addPod("web", pod)
	for _, point := range addPoints() {
		if point == "after allocate" {
			continue // Allocate returns no error after it has allocated, see package ipam
		}
		t.Run(point, func(t *testing.T) {
			a.faults.at(point, false)
			if _, err := a.Add(t.Context(), req); !errors.Is(err, errInjected) && code(err) != types.ErrIOFailure {
				t.Errorf("got %v, want the injected error", err)
			}
			n.wantClean(t)
			if got := devices(t, pod); !slices.Equal(got, []string{"lo"}) {
				t.Errorf("got devices %v in the pod, want lo only", got)
			}
		})
		t.Run("timeout "+point, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			a.faults.cancelAt(point, cancel)
			if _, err := a.Add(ctx, req); err == nil {
				t.Error("ADD after its timeout: got no error")
			}
			n.wantClean(t)
		})
	}
	add(t, a, req)
	del(t, a, req)
	n.wantClean(t)
}

// A step of DEL fails: the next DEL removes the pod.
func TestDel_failureIsRepeated(t *testing.T) {
	tier.Parallel(t)
	n := newNode(t)
	a, _ := n.start(t)
	req := n.addPod("web", newNetns(t))
	for _, point := range delPoints() {
		t.Run(point, func(t *testing.T) {
			add(t, a, req)
			a.faults.at(point, false)
			if err := a.Del(t.Context(), req); !errors.Is(err, errInjected) && code(err) != types.ErrIOFailure {
				t.Errorf("got %v, want the injected error", err)
			}
			del(t, a, req)
			n.wantClean(t)
		})
	}
}

// The agent is killed between two steps. The next agent removes or recovers the pod, and a repeated DEL succeeds.
func TestRecover_killedAgent(t *testing.T) {
	tier.Parallel(t)
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
					t.Fatal("got no error, want the injected one")
				}
				stop()

				second, _ := n.start(t)
				// The store may not have replaced the flows yet.
				left := slices.DeleteFunc(n.residue(t), func(r string) bool { return strings.HasPrefix(r, "flow ") })
				if len(second.Pods()) == 0 && len(left) > 0 {
					t.Errorf("got %v after Recover, want none", left)
				}
				del(t, second, req)
				n.wantClean(t)
				if got := devices(t, pod); !slices.Equal(got, []string{"lo"}) {
					t.Errorf("got devices %v in the pod, want lo only", got)
				}
			})
		}
	}
}

func TestAddDel_parallel(t *testing.T) {
	addDelParallel(t, newNode(t), 32)
}

func addDelParallel(t *testing.T, n *node, pods int) {
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

// ADD and DEL of the same sandbox run one after the other.
func TestAddDel_sameSandbox(t *testing.T) {
	tier.Parallel(t)
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

// While Open vSwitch is unavailable requests fail before their timeout, and later ones succeed.
func TestAddDel_switchUnavailable(t *testing.T) {
	n := newNode(t)
	a, _ := n.start(t)
	a.cleanupTimeout = 20 * time.Millisecond
	req, late := n.addPod("web", newNetns(t)), n.addPod("late", newNetns(t))
	add(t, a, req)
	bridge := n.bridge.(interface{ SetUnavailable(bool) })
	bridge.SetUnavailable(true)
	if _, err := a.Add(t.Context(), late); code(err) != types.ErrTryAgainLater {
		t.Errorf("ADD: got %v, want code %d", err, types.ErrTryAgainLater)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	a.faults.cancelAt("after delete", cancel)
	if err := a.Del(ctx, req); code(err) != types.ErrTryAgainLater {
		t.Errorf("DEL: got %v, want code %d", err, types.ErrTryAgainLater)
	}
	if got := devices(t, n.host); slices.ContainsFunc(got, func(d string) bool { return strings.HasPrefix(d, "veth") }) {
		t.Errorf("got devices %v after DEL without Open vSwitch, want no veth", got)
	}
	bridge.SetUnavailable(false)
	a.store.Resync()
	del(t, a, req)
	add(t, a, late)
	del(t, a, late)
	n.wantClean(t)
}

// A request that hangs delays only requests of its own sandbox, until their timeout.
func TestDel_waitsForSameSandboxOnly(t *testing.T) {
	n := newNode(t)
	a, _ := n.start(t)
	hung, other := n.addPod("hung", newNetns(t)), n.addPod("other", newNetns(t))
	unlock, err := a.sandboxes.Lock(t.Context(), hung.ContainerID)
	if err != nil {
		t.Fatal(err)
	}
	add(t, a, other)
	del(t, a, other)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := a.Del(ctx, hung); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("DEL of the hung sandbox: got %v, want %v", err, context.DeadlineExceeded)
	}
	unlock()
	add(t, a, hung)
	del(t, a, hung)
	if got := a.sandboxes.Len(); got != 0 {
		t.Errorf("got %d locks after the last request, want 0", got)
	}
}
