package vnids

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	networkv1 "github.com/openshift/api/network/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

func tryAgainCode(err error) uint {
	var e *types.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return 0
}

// A pod may come before the watch tells of its namespace: the API server is asked, once.
func TestFetch(t *testing.T) {
	f := start(t, config.ModeMultitenant)
	for range 2 {
		if err := f.Fetch(t.Context(), "late"); tryAgainCode(err) != types.ErrTryAgainLater || !strings.Contains(err.Error(), "namespace late has no NetNamespace yet") {
			t.Errorf("without a NetNamespace: %v", err)
		}
		if got := <-f.gets; got != "late" {
			t.Errorf("asked for %s", got)
		}
	}
	f.create(netNamespace("late", 0x70))
	if err := f.Fetch(t.Context(), "late"); err != nil {
		t.Fatal(err)
	}
	f.set("late", 1)
	f.wantLoads("1:0x70")
}

// A namespace of a name that somebody is left of gets its own VNID, though the watch has not told of it.
func TestFetchOfANewNamespaceOfAnOldName(t *testing.T) {
	f := start(t, config.ModeMultitenant, netNamespace("a", 0x20))
	f.set("a", 1)
	f.wantLoads("1:0x20")
	f.goneIsNoticed("a")
	f.wantLoads("1:0x20")
	f.get = func(context.Context, string) (*networkv1.NetNamespace, error) { return netNamespace("a", 0x30), nil }
	if err := f.Fetch(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	f.set("a", 2)
	f.wantLoads("1:0x30 2:0x30")
}

// The pods that are left of the old namespace follow the new one, though the switch refuses them when a pod's ADD learns of it.
func TestFetchedVNIDThatIsRefusedIsTriedAgain(t *testing.T) {
	f := start(t, config.ModeMultitenant, netNamespace("a", 0x20), netNamespace("b", 0x50))
	var refuses atomic.Bool
	f.bridge.RefuseFlow = func(flow *ovs.Flow) string {
		if refuses.Load() && flow.InPort == 1 {
			return "there is no room"
		}
		return ""
	}
	f.set("a", 1)
	f.goneIsNoticed("a")
	refuses.Store(true)
	f.get = func(context.Context, string) (*networkv1.NetNamespace, error) { return netNamespace("a", 0x30), nil }
	if err := f.Fetch(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	f.set("b", 2) // behind it
	f.wantLoads("1:0x20 2:0x50")
	refuses.Store(false)
	f.create(netNamespace("a", 0x30)) // the watch tells of it, at last
	f.wantLoads("1:0x30 2:0x50")
}

// The watch overtakes an answer of the API server: nobody would tell of the newer VNID again.
func TestFetchThatIsOvertaken(t *testing.T) {
	f := start(t, config.ModeMultitenant)
	f.get = func(context.Context, string) (*networkv1.NetNamespace, error) {
		f.create(netNamespace("a", 0x30))
		f.update(netNamespace("a", 0x40))
		f.eventually(func() error {
			if vnid, _ := f.Of("a"); vnid != 0x40 {
				return fmt.Errorf("the VNID is %s", vnid)
			}
			return nil
		})
		return netNamespace("a", 0x30), nil
	}
	if err := f.Fetch(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if vnid, known := f.Of("a"); vnid != 0x40 || !known {
		t.Errorf("the VNID is %s, known %t", vnid, known)
	}
}

// goneIsNoticed deletes a NetNamespace.
func (f *fixture) goneIsNoticed(name string) {
	f.t.Helper()
	if err := f.client.NetworkV1().NetNamespaces().Delete(f.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		f.t.Fatal(err)
	}
	f.eventually(func() error {
		if f.isCurrent(name) {
			return errors.New("nobody has told that it is gone")
		}
		return nil
	})
}

// An API server that does not answer holds up nobody else, and those who ask for one namespace share the question.
func TestFetchThatHangs(t *testing.T) {
	f := start(t, config.ModeMultitenant, netNamespace("a", 0x20))
	asked, answer := make(chan string, 100), make(chan struct{})
	f.get = func(ctx context.Context, name string) (*networkv1.NetNamespace, error) {
		asked <- name
		select {
		case <-answer:
			return nil, errors.New("no answer")
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	results := make(chan error, 20)
	for range cap(results) {
		go func() { results <- f.Fetch(t.Context(), "slow") }()
	}
	<-asked
	f.set("a", 1)
	if err := f.Fetch(t.Context(), "a"); err != nil {
		t.Error(err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.Fetch(gone, "slow"); !errors.Is(err, context.Canceled) {
		t.Errorf("a pod whose runtime gave up: %v", err)
	}
	close(answer)
	for range cap(results) {
		if err := <-results; tryAgainCode(err) != types.ErrTryAgainLater {
			t.Errorf("got %v", err)
		}
	}
}
