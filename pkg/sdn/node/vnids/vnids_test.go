package vnids

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/test/tier"
)

func TestVNIDChange_recompilesPods(t *testing.T) {
	f := start(t, config.ModeMultitenant, netNamespace("a", 0x20), netNamespace("b", 0x30))
	f.set("a", 1)
	f.set("a", 2)
	f.set("b", 3)
	f.wantLoads("1:0x20 2:0x20 3:0x30")
	f.update(netNamespace("a", 0x30))
	f.wantLoads("1:0x30 2:0x30 3:0x30")
	f.remove("a", 1)
	f.update(netNamespace("a", 0))
	f.wantLoads("2:0x0 3:0x30")
	// A new pod of the namespace gets the VNID of the others.
	f.set("a", 4)
	f.wantLoads("2:0x0 3:0x30 4:0x0")
}

// At no time do some pods of a namespace have the new VNID and some the previous one.
func TestVNIDChange_oneBundle(t *testing.T) {
	const pods = 100
	f := start(t, config.ModeMultitenant, netNamespace("a", 0x20))
	for n := range pods {
		f.set("a", n+1)
	}
	before := f.bridge.Bundles()
	f.update(netNamespace("a", 0x30))
	f.eventually(func() error {
		flows := f.bridge.Flows()
		previous, current := 0, 0
		for _, text := range flows {
			if strings.Contains(text, "load:0x20") {
				previous++
			}
			if strings.Contains(text, "load:0x30") {
				current++
			}
		}
		if previous > 0 && current > 0 {
			t.Fatalf("%d pods have the previous VNID and %d the new one", previous, current)
		}
		if current != pods {
			return fmt.Errorf("pods with the new VNID: got %d, want %d", current, pods)
		}
		return nil
	})
	if n := f.bridge.Bundles() - before; n != 1 {
		t.Errorf("got %d bundles, want 1", n)
	}
}

// Pods that are added while their namespace's VNID changes finally have the last VNID.
func TestVNIDChange_duringAdds(t *testing.T) {
	f := start(t, config.ModeMultitenant, netNamespace("a", 0x20))
	var adding sync.WaitGroup
	for n := range 50 {
		adding.Go(func() { f.set("a", n+1) })
		f.update(netNamespace("a", 0x100+uint32(n)))
	}
	adding.Wait()
	f.eventually(func() error {
		flows := f.bridge.Flows()
		if n := strings.Count(strings.Join(flows, "\n"), fmt.Sprintf("load:%#x->", 0x100+49)); n != 50 {
			return fmt.Errorf("pods with the last VNID: got %d, want 50", n)
		}
		return nil
	})
}

func TestUnknownNamespaceHasNoFlows(t *testing.T) {
	f := start(t, config.ModeMultitenant)
	f.set("a", 1) // for example a recovered pod
	if _, known := f.of("a"); known {
		t.Error("got a VNID of a namespace without NetNamespace, want none")
	}
	f.wantLoads("")
	f.create(netNamespace("a", 0x20))
	f.wantLoads("1:0x20")
}

// A NetNamespace that becomes invalid retains its VNID; one that was never valid has none.
func TestInvalidNetNamespace(t *testing.T) {
	f := start(t, config.ModeMultitenant, netNamespace("a", 0x20), netNamespace("bad", 5))
	f.set("a", 1)
	f.set("bad", 2)
	f.update(netNamespace("a", 1<<24))
	f.update(netNamespace("a", 9))
	otherName := netNamespace("a", 0x30)
	otherName.NetName = "b"
	f.update(otherName)
	f.create(netNamespace("c", 0x40))
	f.set("c", 3)
	f.wantLoads("1:0x20 3:0x40")
	if err := f.require(t.Context(), "bad"); tryAgainCode(err) != types.ErrTryAgainLater {
		t.Errorf("pod of a NetNamespace with VNID 5: got %v, want ErrTryAgainLater", err)
	}
}

// Remaining pods of a namespace whose NetNamespace was deleted retain their VNID; the last pod's removal deletes it.
func TestNetNamespaceDeleted(t *testing.T) {
	f := start(t, config.ModeMultitenant, netNamespace("a", 0x20))
	f.set("a", 1)
	if err := f.client.NetworkV1().NetNamespaces().Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.create(netNamespace("z", 0x50)) // usually handled after the deletion
	f.eventually(func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if _, exists := f.namespaces["a"]; exists {
			return errors.New("the deletion is not handled yet")
		}
		return nil
	})
	f.wantLoads("1:0x20")
	f.remove("a", 1)
	if _, known := f.of("a"); known {
		t.Error("got a VNID after the last pod's removal, want none")
	}
	// Another namespace of the same name.
	f.create(netNamespace("a", 0x60))
	f.eventually(func() error { return f.require(t.Context(), "a") })
	f.set("a", 2)
	f.wantLoads("2:0x60")
}

func TestModeSubnet_sendsNoRequests(t *testing.T) {
	f := start(t, config.ModeSubnet)
	if err := f.require(t.Context(), "any"); err != nil {
		t.Error(err)
	}
	f.set("any", 1)
	f.wantLoads("1:0x0")
	f.remove("any", 1)
	f.wantLoads("")
	if len(f.gets) > 0 {
		t.Errorf("got %d requests to the API server, want none", len(f.gets))
	}
	if len(f.replicated) > 0 {
		t.Error("got multicast flows, want none")
	}
}

// A change of the VNID is repeated until the switch accepts its flows.
func TestVNIDChange_rejectedFlows(t *testing.T) {
	tier.Parallel(t)
	f := start(t, config.ModeMultitenant, netNamespace("a", 0x20))
	var rejects atomic.Bool
	rejected := make(chan struct{}, 100)
	f.bridge.RefuseFlow = func(*ovs.Flow) string {
		if !rejects.Load() {
			return ""
		}
		rejected <- struct{}{}
		return "table is full"
	}
	f.set("a", 1)
	f.wantLoads("1:0x20")
	rejects.Store(true)
	f.update(netNamespace("a", 0x30))
	<-rejected
	rejects.Store(false)
	f.wantLoads("1:0x30")
}
