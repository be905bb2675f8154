package pods

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/pkg/ns"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/test/await"
)

func gc(valid string) *cniserver.Request {
	return &cniserver.Request{Command: cniserver.CommandGC, Config: fmt.Appendf(nil,
		`{"cniVersion":"1.1.0","name":"ovsdn","type":"ovsdn-cni"%s}`, valid)}
}

func TestGC(t *testing.T) {
	n := newNode(t)
	a, _ := n.start(t)
	keep, drop, busy := n.addPod("keep", newNetns(t)), n.addPod("drop", newNetns(t)), n.addPod("busy", newNetns(t))
	kept := add(t, a, keep)
	add(t, a, drop)
	add(t, a, busy)
	if err := a.GC(t.Context(), gc("")); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{`,"cni.dev/valid-attachments":{}`, `,"cni.dev/valid-attachments":["x"]`} {
		if err := a.GC(t.Context(), gc(bad)); err == nil {
			t.Errorf("GC with %q: no error", bad)
		}
	}
	if len(a.Pods()) != 3 {
		t.Fatalf("pods: %+v", a.Pods())
	}
	unlock, err := a.sandboxes.lock(t.Context(), busy.ContainerID)
	if err != nil {
		t.Fatal(err)
	}
	list := gc(fmt.Sprintf(`,"cni.dev/valid-attachments":[{"containerID":%q,"ifname":"eth0"},{"containerID":"../..","ifname":"/"}]`, keep.ContainerID))
	if err := a.GC(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range a.Pods() {
		names = append(names, p.Name)
	}
	if !slices.Equal(names, []string{"busy", "keep"}) {
		t.Errorf("pods: %v", names)
	}
	unlock()
	if err := a.GC(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	if err := a.Check(t.Context(), check(t, keep, kept)); err != nil {
		t.Error(err)
	}
	if err := a.GC(t.Context(), gc(`,"cni.dev/valid-attachments":null`)); err != nil {
		t.Error(err)
	}
	n.wantClean(t)
}

// A pod that is attached while GC looks around is not in the runtime's list, which was made before.
func TestGCKeepsWhatIsYounger(t *testing.T) {
	n := newNode(t)
	a, _ := n.start(t)
	old, young := n.addPod("old", newNetns(t)), n.addPod("young", newNetns(t))
	add(t, a, old)
	meanwhile := &whenListed{Switch: a.bridge, then: func() { add(t, a, young) }}
	a.bridge = meanwhile
	if err := a.GC(t.Context(), gc(`,"cni.dev/valid-attachments":[]`)); err != nil {
		t.Error(err)
	}
	if pods := a.Pods(); len(pods) != 1 || pods[0].Name != "young" {
		t.Errorf("attached: %v", pods)
	}
	del(t, a, young)
	n.wantClean(t)
}

// whenListed does something, which may ask for the ports too, when they are asked for the first time.
type whenListed struct {
	Switch
	asked atomic.Bool
	then  func()
}

func (w *whenListed) ListPorts(ctx context.Context) ([]ovs.Port, error) {
	if w.asked.CompareAndSwap(false, true) {
		w.then()
	}
	return w.Switch.ListPorts(ctx)
}

// A step of the sweep fails: the others are swept, and the next sweep takes it.
func TestGCGoesOnAfterErrors(t *testing.T) {
	n := newNode(t)
	a, _ := n.start(t)
	for _, name := range []string{"a", "b", "c"} {
		add(t, a, n.addPod(name, newNetns(t)))
	}
	a.faults.at("before delete port", false)
	none := gc(`,"cni.dev/valid-attachments":[]`)
	if err := a.GC(t.Context(), none); !errors.Is(err, errInjected) {
		t.Errorf("got %v", err)
	}
	if pods := a.Pods(); len(pods) != 1 {
		t.Errorf("left: %+v", pods)
	}
	if err := a.GC(t.Context(), none); err != nil {
		t.Error(err)
	}
	n.wantClean(t)
}

// closeNetns ends a pod's namespace and waits until the kernel has taken its device away.
func (n *node) closeNetns(t *testing.T, pod ns.NetNS, req *cniserver.Request) {
	t.Helper()
	if err := pod.Close(); err != nil {
		t.Fatal(err)
	}
	await.OK(t, time.Minute, func(context.Context) error {
		if slices.Contains(devices(t, n.host), (Attachment{req.ContainerID, req.IfName}).HostVeth()) {
			return errors.New("the kernel keeps the device")
		}
		return nil
	})
}

// The runtime forgot a DEL: when there is no address left, those of dead sandboxes are found, and a full node says so.
func TestSweepBeforeNoFreeAddress(t *testing.T) {
	n := newNode(t)
	n.options.Subnets = []netip.Prefix{netip.MustParsePrefix("10.128.2.0/30")} // one address
	a, _ := n.start(t)
	pod := newNetns(t)
	first, second, third := n.addPod("first", pod), n.addPod("second", newNetns(t)), n.addPod("third", newNetns(t))
	add(t, a, first)
	_, err := a.Add(t.Context(), second)
	if code(err) != types.ErrTryAgainLater || !strings.Contains(err.Error(), "node node1 has no free address") {
		t.Errorf("got %v", err)
	}
	a.events.want(t, "node: "+ReasonNoFreeAddress, "pod second: "+ReasonAttachFailed)
	if err := a.Status(t.Context()); err != nil {
		t.Errorf("STATUS of a full node would have its pods evicted: %v", err)
	}
	n.closeNetns(t, pod, first)
	add(t, a, second)
	if pods := a.Pods(); len(pods) != 1 || pods[0].Name != "second" {
		t.Errorf("pods: %+v", pods)
	}
	del(t, a, first) // late
	del(t, a, second)
	add(t, a, third)
	del(t, a, third)
	n.wantClean(t)
}

// What others broke of living pods is put right.
func TestSweepTendsTheLiving(t *testing.T) {
	n := newNode(t)
	a, _ := n.start(t)
	req := n.addPod("web", newNetns(t))
	checkReq := check(t, req, add(t, a, req))
	lease := n.ipamDir + "/ovsdn/10.128.2.2"
	for name, spoil := range map[string]func() error{
		"lease gone": func() error { return os.Remove(lease) },
		"lease torn": func() error { return os.Truncate(lease, 0) },
		"port gone":  func() error { return n.bridge.DeletePort(t.Context(), a.Pods()[0].HostVeth()) },
		"further lease": func() error {
			return os.WriteFile(n.ipamDir+"/ovsdn/10.128.2.9", []byte(req.ContainerID+"\r\neth0"), 0o600)
		},
		"nobody's lease":   func() error { return os.WriteFile(n.ipamDir+"/ovsdn/10.128.2.9", nil, 0o600) },
		"stranger's lease": func() error { return os.WriteFile(n.ipamDir+"/ovsdn/10.128.2.9", []byte("stranger\r\neth0"), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			if err := spoil(); err != nil {
				t.Fatal(err)
			}
			if err := a.sweep(t.Context(), allValid); err != nil {
				t.Fatal(err)
			}
			if err := a.Check(t.Context(), checkReq); err != nil {
				t.Error(err)
			}
			var leases []string
			for _, r := range n.residue(t) {
				if strings.HasPrefix(r, "lease") {
					leases = append(leases, r)
				}
			}
			if !slices.Equal(leases, []string{"lease 10.128.2.2"}) {
				t.Errorf("leases: %v", leases)
			}
		})
	}
	del(t, a, req)
	n.wantClean(t)
}

// A stale lease names a dead sandbox for an address that a living pod has by its external_ids: the pod has it.
func TestRecoverBelievesPortsOverLeases(t *testing.T) {
	for _, dead := range []string{"dead", "zombie"} { // before and behind sandbox-of-web
		n := newNode(t)
		first, stop := n.start(t)
		req := n.addPod("web", newNetns(t))
		checkReq := check(t, req, add(t, first, req))
		stop()
		if err := os.WriteFile(n.ipamDir+"/ovsdn/10.128.2.2", []byte(dead+"\r\neth0"), 0o600); err != nil {
			t.Fatal(err)
		}
		second, _ := n.start(t)
		awaitCheck(t, second, checkReq)
		del(t, second, req)
		n.wantClean(t)
	}
}
