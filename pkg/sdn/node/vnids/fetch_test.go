package vnids

import (
	"context"
	"errors"
	"fmt"
	"slices"
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

// A pod's ADD may precede the watch event of its namespace: each ADD then sends one request to the API server.
func TestRequire_getsUnknownNetNamespace(t *testing.T) {
	f := start(t, config.ModeMultitenant)
	for range 2 {
		if err := f.require(t.Context(), "late"); tryAgainCode(err) != types.ErrTryAgainLater || !strings.Contains(err.Error(), "namespace late has no NetNamespace yet") {
			t.Errorf("without a NetNamespace: got %v, want ErrTryAgainLater", err)
		}
		if got := <-f.gets; got != "late" {
			t.Errorf("requested NetNamespace: got %s, want late", got)
		}
	}
	f.create(netNamespace("late", 0x70))
	if err := f.require(t.Context(), "late"); err != nil {
		t.Fatal(err)
	}
	f.set("late", 1)
	f.wantLoads("1:0x70")
}

// A re-created namespace gets its new VNID before its watch event, while pods of the deleted namespace remain.
func TestRequire_recreatedNamespace(t *testing.T) {
	f := start(t, config.ModeMultitenant, netNamespace("a", 0x20))
	f.set("a", 1)
	f.wantLoads("1:0x20")
	f.deleteNetNamespace("a")
	f.wantLoads("1:0x20")
	f.get = func(context.Context, string) (*networkv1.NetNamespace, error) { return netNamespace("a", 0x30), nil }
	if err := f.require(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	f.set("a", 2)
	f.wantLoads("1:0x30 2:0x30")
}

// The remaining pods of a deleted namespace get the VNID of the re-created one, also if the switch first rejects their flows.
func TestRequire_recreatedNamespaceWithRejectedFlows(t *testing.T) {
	f := start(t, config.ModeMultitenant, netNamespace("a", 0x20), netNamespace("b", 0x50))
	var rejects atomic.Bool
	f.bridge.RefuseFlow = func(flow *ovs.Flow) string {
		key, err := ovs.FlowKey(flow)
		if err != nil {
			return err.Error()
		}
		if rejects.Load() && slices.Contains(strings.Split(key.Match, ","), "in_port=1") {
			return "table is full"
		}
		return ""
	}
	f.set("a", 1)
	f.deleteNetNamespace("a")
	rejects.Store(true)
	f.get = func(context.Context, string) (*networkv1.NetNamespace, error) { return netNamespace("a", 0x30), nil }
	if err := f.require(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	f.set("b", 2) // later than the change of a
	f.wantLoads("1:0x20 2:0x50")
	rejects.Store(false)
	f.create(netNamespace("a", 0x30)) // causes the watch event
	f.wantLoads("1:0x30 2:0x50")
}

// A watch event that precedes the older answer of the API server wins.
func TestRequire_olderThanWatchEvent(t *testing.T) {
	f := start(t, config.ModeMultitenant)
	f.get = func(context.Context, string) (*networkv1.NetNamespace, error) {
		f.create(netNamespace("a", 0x30))
		f.update(netNamespace("a", 0x40))
		f.eventually(func() error {
			if vnid, _ := f.of("a"); vnid != 0x40 {
				return fmt.Errorf("VNID: got %s, want 0x40", vnid)
			}
			return nil
		})
		return netNamespace("a", 0x30), nil
	}
	if err := f.require(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if vnid, known := f.of("a"); vnid != 0x40 || !known {
		t.Errorf("VNID: got %s, known %t; want 0x40, known", vnid, known)
	}
}

// deleteNetNamespace deletes the NetNamespace, and waits until its watch event is handled.
func (f *fixture) deleteNetNamespace(name string) {
	f.t.Helper()
	if err := f.client.NetworkV1().NetNamespaces().Delete(f.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		f.t.Fatal(err)
	}
	f.eventually(func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if _, exists := f.namespaces[name]; exists {
			return errors.New("the deletion is not handled yet")
		}
		return nil
	})
}

// While the API server does not answer, pods of known namespaces start, and pods of one unknown namespace share one request.
func TestRequire_apiServerHangs(t *testing.T) {
	f := start(t, config.ModeMultitenant, netNamespace("a", 0x20))
	requests, answer := make(chan string, 100), make(chan struct{})
	f.get = func(ctx context.Context, name string) (*networkv1.NetNamespace, error) {
		requests <- name
		select {
		case <-answer:
			return nil, errors.New("no answer")
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	results := make(chan error, 20)
	for range cap(results) {
		go func() { results <- f.require(t.Context(), "slow") }()
	}
	<-requests
	f.set("a", 1)
	if err := f.require(t.Context(), "a"); err != nil {
		t.Error(err)
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := f.require(canceled, "slow"); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled ADD: got %v, want context.Canceled", err)
	}
	close(answer)
	for range cap(results) {
		if err := <-results; tryAgainCode(err) != types.ErrTryAgainLater {
			t.Errorf("got %v, want ErrTryAgainLater", err)
		}
	}
}
