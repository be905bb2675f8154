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
)

func TestDependentsFollowTheirNamespace(t *testing.T) {
	f := start(t, config.ModeMultitenant, netNamespace("a", 0x20), netNamespace("b", 0x30))
	f.set("a", 1)
	f.set("a", 2)
	f.set("b", 3)
	f.wantLoads("1:0x20 2:0x20 3:0x30")
	f.update(netNamespace("a", 0x30))
	f.wantLoads("1:0x30 2:0x30 3:0x30")
	f.must(f.Delete(owner(1)))
	f.update(netNamespace("a", 0))
	f.wantLoads("2:0x0 3:0x30")
	// A new one of the namespace has what the others have.
	f.set("a", 4)
	f.wantLoads("2:0x0 3:0x30 4:0x0")
}

// No packet meets a namespace of which some pods have the new VNID and some the old one.
func TestNamespaceChangesInOneBundle(t *testing.T) {
	const pods = 100
	f := start(t, config.ModeMultitenant, netNamespace("a", 0x20))
	for n := range pods {
		f.set("a", n+1)
	}
	before := f.bridge.Bundles()
	f.update(netNamespace("a", 0x30))
	f.eventually(func() error {
		flows := f.bridge.Flows()
		old, now := 0, 0
		for _, text := range flows {
			if strings.Contains(text, "load:0x20") {
				old++
			}
			if strings.Contains(text, "load:0x30") {
				now++
			}
		}
		if old > 0 && now > 0 {
			t.Fatalf("%d pods have the old VNID and %d the new one", old, now)
		}
		if now != pods {
			return fmt.Errorf("%d pods have the new VNID", now)
		}
		return nil
	})
	if n := f.bridge.Bundles() - before; n != 1 {
		t.Errorf("%d bundles", n)
	}
}

// A pod that comes while its namespace changes has the VNID of the others when all is quiet.
func TestComingWhileTheNamespaceChanges(t *testing.T) {
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
			return fmt.Errorf("%d of 50 pods have the last VNID", n)
		}
		return nil
	})
}

func TestUnknownNamespaceHasNoFlows(t *testing.T) {
	f := start(t, config.ModeMultitenant)
	f.set("a", 1) // a recovered pod, say
	if _, known := f.Of("a"); known {
		t.Error("the VNID is known of a namespace without NetNamespace")
	}
	f.wantLoads("")
	f.create(netNamespace("a", 0x20))
	f.wantLoads("1:0x20")
}

// What nobody can have is not taken over, and who has a VNID keeps it.
func TestUnusableNetNamespace(t *testing.T) {
	f := start(t, config.ModeMultitenant, netNamespace("a", 0x20), netNamespace("bad", 5))
	f.set("a", 1)
	f.set("bad", 2)
	f.update(netNamespace("a", 1<<24))
	f.update(netNamespace("a", 9))
	wrong := netNamespace("a", 0x30)
	wrong.NetName = "b"
	f.update(wrong)
	f.create(netNamespace("c", 0x40))
	f.set("c", 3)
	f.wantLoads("1:0x20 3:0x40")
	if err := f.Fetch(t.Context(), "bad"); tryAgainCode(err) != types.ErrTryAgainLater {
		t.Errorf("a pod of a NetNamespace with VNID 5: %v", err)
	}
}

// The pods that are left in a namespace whose NetNamespace is gone keep their VNID; it is forgotten with the last of them.
func TestNetNamespaceGone(t *testing.T) {
	f := start(t, config.ModeMultitenant, netNamespace("a", 0x20))
	f.set("a", 1)
	if err := f.client.NetworkV1().NetNamespaces().Delete(t.Context(), "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.create(netNamespace("z", 0x50)) // seen behind the deletion, mostly
	f.eventually(func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.namespaces["a"].exists {
			return errors.New("it is not noticed")
		}
		return nil
	})
	f.wantLoads("1:0x20")
	f.must(f.Delete(owner(1)))
	if _, known := f.Of("a"); known {
		t.Error("the VNID is still known")
	}
	// The same name again is another namespace.
	f.create(netNamespace("a", 0x60))
	f.eventually(func() error { return f.Fetch(t.Context(), "a") })
	f.set("a", 2)
	f.wantLoads("2:0x60")
}

func TestModeSubnetAsksNobody(t *testing.T) {
	f := start(t, config.ModeSubnet)
	if err := f.Fetch(t.Context(), "any"); err != nil {
		t.Error(err)
	}
	f.set("any", 1)
	f.wantLoads("1:0x0")
	f.must(f.Delete(owner(1)))
	f.wantLoads("")
	if len(f.gets) > 0 {
		t.Error("the API server was asked")
	}
	if len(f.networks) > 0 && f.networks[0].replicated {
		t.Error("there is multicast")
	}
}

// A change of VNID that the switch refuses is tried until it takes it.
func TestRefusedVNIDIsTriedAgain(t *testing.T) {
	f := start(t, config.ModeMultitenant, netNamespace("a", 0x20))
	var refuses atomic.Bool
	refused := make(chan struct{}, 100)
	f.bridge.RefuseFlow = func(*ovs.Flow) string {
		if !refuses.Load() {
			return ""
		}
		refused <- struct{}{}
		return "there is no room"
	}
	f.set("a", 1)
	f.wantLoads("1:0x20")
	refuses.Store(true)
	f.update(netNamespace("a", 0x30))
	<-refused
	refuses.Store(false)
	f.wantLoads("1:0x30")
}
