package vnids

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	networkv1 "github.com/openshift/api/network/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
	if err := f.client.NetworkV1().NetNamespaces().Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.eventually(func() error {
		if f.isCurrent("a") {
			return errors.New("nobody has told that it is gone")
		}
		return nil
	})
	f.wantLoads("1:0x20")
	f.get = func(context.Context, string) (*networkv1.NetNamespace, error) { return netNamespace("a", 0x30), nil }
	if err := f.Fetch(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	f.set("a", 2)
	f.wantLoads("1:0x30 2:0x30")
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
