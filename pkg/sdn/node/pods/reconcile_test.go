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
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
	"github.com/ovsdn/ovsdn/test/await"
)

func gc(list string) *cniserver.Request {
	return &cniserver.Request{Command: cniserver.CommandGC, Config: fmt.Appendf(nil,
		`{"cniVersion":"1.1.0","name":"ovsdn","type":"ovsdn-cni"%s}`, list)}
}

func TestGC(t *testing.T) {
	n := newNode(t)
	a, _ := n.start(t)
	valid, invalid, busy := n.addPod("valid", newNetns(t)), n.addPod("invalid", newNetns(t)), n.addPod("busy", newNetns(t))
	validResult := add(t, a, valid)
	add(t, a, invalid)
	add(t, a, busy)
	if err := a.GC(t.Context(), gc("")); err != nil {
		t.Error(err)
	}
	for _, bad := range []string{`,"cni.dev/valid-attachments":{}`, `,"cni.dev/valid-attachments":["x"]`} {
		if err := a.GC(t.Context(), gc(bad)); err == nil {
			t.Errorf("GC with %q: got no error", bad)
		}
	}
	if len(a.Pods()) != 3 {
		t.Fatalf("got pods %+v, want 3", a.Pods())
	}
	unlock, err := a.sandboxes.Lock(t.Context(), busy.ContainerID)
	if err != nil {
		t.Fatal(err)
	}
	list := gc(fmt.Sprintf(`,"cni.dev/valid-attachments":[{"containerID":%q,"ifname":"eth0"},{"containerID":"../..","ifname":"/"}]`, valid.ContainerID))
	if err := a.GC(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range a.Pods() {
		names = append(names, p.Name)
	}
	if !slices.Equal(names, []string{"busy", "valid"}) {
		t.Errorf("got pods %v, want busy and valid", names)
	}
	unlock()
	if err := a.GC(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	if err := a.Check(t.Context(), check(t, valid, validResult)); err != nil {
		t.Error(err)
	}
	if err := a.GC(t.Context(), gc(`,"cni.dev/valid-attachments":null`)); err != nil {
		t.Error(err)
	}
	n.wantClean(t)
}

// A pod that is attached during GC is not in the runtime's list, which is older. GC does not detach it.
func TestGC_podAttachedDuringGC(t *testing.T) {
	n := newNode(t)
	a, _ := n.start(t)
	old, young := n.addPod("old", newNetns(t)), n.addPod("young", newNetns(t))
	add(t, a, old)
	bridge := &whenListed{Switch: a.bridge, then: func() { add(t, a, young) }}
	a.bridge = bridge
	if err := a.GC(t.Context(), gc(`,"cni.dev/valid-attachments":[]`)); err != nil {
		t.Error(err)
	}
	if pods := a.Pods(); len(pods) != 1 || pods[0].Name != "young" {
		t.Errorf("got pods %v, want young", pods)
	}
	del(t, a, young)
	n.wantClean(t)
}

// whenListed calls then, which may list the ports too, when the ports are listed for the first time.
type whenListed struct {
	Switch
	listed atomic.Bool
	then   func()
}

func (w *whenListed) ListPorts(ctx context.Context) ([]ovs.Port, error) {
	if w.listed.CompareAndSwap(false, true) {
		w.then()
	}
	return w.Switch.ListPorts(ctx)
}

// Removal of one pod fails: GC removes the others, and the next GC removes that one.
func TestGC_continuesAfterErrors(t *testing.T) {
	n := newNode(t)
	a, _ := n.start(t)
	for _, name := range []string{"a", "b", "c"} {
		add(t, a, n.addPod(name, newNetns(t)))
	}
	a.faults.at("before delete port", false)
	none := gc(`,"cni.dev/valid-attachments":[]`)
	if err := a.GC(t.Context(), none); !errors.Is(err, errInjected) {
		t.Errorf("GC: got %v, want the injected error", err)
	}
	if pods := a.Pods(); len(pods) != 1 {
		t.Errorf("got pods %+v, want one", pods)
	}
	if err := a.GC(t.Context(), none); err != nil {
		t.Error(err)
	}
	n.wantClean(t)
}

// closeNetns closes a pod's network namespace and waits until the kernel has deleted its device.
func (n *node) closeNetns(t *testing.T, pod ns.NetNS, req *cniserver.Request) {
	t.Helper()
	if err := pod.Close(); err != nil {
		t.Fatal(err)
	}
	await.OK(t, 90*time.Second, func(context.Context) error {
		if slices.Contains(devices(t, n.host), (sandbox.Attachment{Sandbox: req.ContainerID, IfName: req.IfName}).HostVeth()) {
			return errors.New("the device still exists")
		}
		return nil
	})
}

// The runtime omitted a DEL: ADD releases the addresses of deleted sandboxes when no other is free. If none is, an Event reports it.
func TestAdd_releasesStaleAddresses(t *testing.T) {
	n := newNode(t)
	n.options.Subnets = []netip.Prefix{netip.MustParsePrefix("10.128.2.0/30")} // one address
	a, _ := n.start(t)
	pod := newNetns(t)
	first, second, third := n.addPod("first", pod), n.addPod("second", newNetns(t)), n.addPod("third", newNetns(t))
	add(t, a, first)
	_, err := a.Add(t.Context(), second)
	if code(err) != types.ErrTryAgainLater || !strings.Contains(err.Error(), "node node1 has no free address") {
		t.Errorf("ADD without a free address: got %v, want code %d", err, types.ErrTryAgainLater)
	}
	a.events.want(t, "node: "+eventreason.NoFreeAddress, "pod second: "+eventreason.NetworkAttachFailed)
	if err := a.Status(t.Context()); err != nil {
		t.Errorf("STATUS of a node without a free address: got %v, want none", err)
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

// Changes by other programs to running pods are corrected.
func TestReconcile_repairsRunningPods(t *testing.T) {
	n := newNode(t)
	a, _ := n.start(t)
	req := n.addPod("web", newNetns(t))
	checkReq := check(t, req, add(t, a, req))
	lease := n.ipamDir + "/ovsdn/10.128.2.2"
	for name, change := range map[string]func() error{
		"lease deleted":   func() error { return os.Remove(lease) },
		"lease truncated": func() error { return os.Truncate(lease, 0) },
		"port deleted":    func() error { return n.bridge.DeletePort(t.Context(), a.Pods()[0].HostVeth()) },
		"second lease": func() error {
			return os.WriteFile(n.ipamDir+"/ovsdn/10.128.2.9", []byte(req.ContainerID+"\r\neth0"), 0o600)
		},
		"lease without a container":     func() error { return os.WriteFile(n.ipamDir+"/ovsdn/10.128.2.9", nil, 0o600) },
		"lease of an unknown container": func() error { return os.WriteFile(n.ipamDir+"/ovsdn/10.128.2.9", []byte("stranger\r\neth0"), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			if err := change(); err != nil {
				t.Fatal(err)
			}
			if err := a.reconcile(t.Context(), allValid); err != nil {
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
				t.Errorf("got leases %v, want that of 10.128.2.2", leases)
			}
		})
	}
	del(t, a, req)
	n.wantClean(t)
}

// A stale lease of a deleted sandbox has the address of a running pod's external_ids: the pod retains the address.
func TestRecover_staleLeaseOfUsedAddress(t *testing.T) {
	for _, container := range []string{"deleted", "terminated"} { // sorted before and after sandbox-of-web
		n := newNode(t)
		first, stop := n.start(t)
		req := n.addPod("web", newNetns(t))
		checkReq := check(t, req, add(t, first, req))
		stop()
		if err := os.WriteFile(n.ipamDir+"/ovsdn/10.128.2.2", []byte(container+"\r\neth0"), 0o600); err != nil {
			t.Fatal(err)
		}
		second, _ := n.start(t)
		awaitCheck(t, second, checkReq)
		del(t, second, req)
		n.wantClean(t)
	}
}
