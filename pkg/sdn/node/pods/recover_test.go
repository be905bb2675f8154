package pods

import (
	"context"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
	"github.com/ovsdn/ovsdn/pkg/ovs"
)

func TestRestart(t *testing.T) {
	n := newNode(t)
	first, stop := n.start(t)
	var requests, checks []*cniserver.Request
	for _, name := range []string{"a", "b", "c"} {
		req := n.addPod(name, newNetns(t))
		checks = append(checks, check(t, req, add(t, first, req)))
		requests = append(requests, req)
	}
	before := first.Pods()
	stop()

	second, _ := n.start(t)
	if diff := cmp.Diff(before, second.Pods(), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Errorf("pods after the restart (-want +got):\n%s", diff)
	}
	req := n.addPod("d", newNetns(t))
	checks = append(checks, check(t, req, add(t, second, req)))
	if pods := second.Pods(); len(pods) != 4 || pods[3].Addrs[0] != netip.MustParseAddr("10.128.2.5") {
		t.Errorf("pods after a further ADD: %+v", pods)
	}
	for i, r := range append(requests, req) {
		if err := second.Check(t.Context(), checks[i]); err != nil {
			t.Errorf("CHECK: %v", err)
		}
		del(t, second, r)
	}
	n.wantClean(t)
}

func TestRecoverSweeps(t *testing.T) {
	n := newNode(t)
	first, stop := n.start(t)
	gone, lost, damaged, torn := n.addPod("gone", newNetns(t)), n.addPod("lost", newNetns(t)), n.addPod("damaged", newNetns(t)), n.addPod("torn", newNetns(t))
	for _, r := range []*cniserver.Request{gone, lost, damaged, torn} {
		add(t, first, r)
	}
	stop()

	veth := func(r *cniserver.Request) string { return Attachment{r.ContainerID, r.IfName}.HostVeth() }
	// The machine was rebooted: no device.
	if err := (hostLinks{n.host, Kernel{}}).Delete(t.Context(), veth(gone)); err != nil {
		t.Fatal(err)
	}
	// The address file is lost or torn.
	if err := os.Remove(n.ipamDir + "/ovsdn/10.128.2.3"); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(n.ipamDir+"/ovsdn/10.128.2.5", 0); err != nil {
		t.Fatal(err)
	}
	// Someone played with external_ids.
	port := ovs.Port{Name: veth(damaged), ExternalIDs: map[string]string{IDSandbox: damaged.ContainerID, IDIfName: "eth0", IDIP: "10.128.2.300"}}
	if _, err := n.bridge.AddPort(t.Context(), port); err != nil {
		t.Fatal(err)
	}
	// A file that names nobody and is nobody's, and a lease whose sandbox never got a port.
	if err := os.WriteFile(n.ipamDir+"/ovsdn/10.128.3.1", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(n.ipamDir+"/ovsdn/10.128.3.2", []byte("nobody\r\neth0"), 0o600); err != nil {
		t.Fatal(err)
	}
	// Not a pod's.
	if _, err := n.bridge.AddPort(t.Context(), ovs.Port{Name: "tun0", Type: "internal"}); err != nil {
		t.Fatal(err)
	}

	second, _ := n.start(t)
	var names []string
	for _, p := range second.Pods() {
		names = append(names, p.Name)
	}
	// The alias of damaged's host veth has what its port lacks.
	if diff := cmp.Diff([]string{"damaged", "lost", "torn"}, names); diff != "" {
		t.Errorf("pods (-want +got):\n%s", diff)
	}
	var kept []string
	for _, r := range n.residue(t) {
		if !strings.HasPrefix(r, "flow ") {
			kept = append(kept, r)
		}
	}
	want := []string{
		"lease 10.128.2.3", "lease 10.128.2.4", "lease 10.128.2.5",
		"port " + veth(lost), "port " + veth(damaged), "port " + veth(torn),
		"device " + veth(lost), "device " + veth(damaged), "device " + veth(torn),
	}
	if diff := cmp.Diff(want, kept, cmpopts.SortSlices(strings.Compare)); diff != "" {
		t.Errorf("kept (-want +got):\n%s", diff)
	}
	for _, r := range []*cniserver.Request{gone, lost, damaged, torn} {
		del(t, second, r)
	}
	n.wantClean(t)
}

// Other devices come and go while the kernel lists them, and it passes over some: their pods live, also one of which only the port's name
// is known.
func TestRecoverAsksForDevicesThatWereNotListed(t *testing.T) {
	n := newNode(t)
	first, stop := n.start(t)
	living, damaged := n.addPod("living", newNetns(t)), n.addPod("damaged", newNetns(t))
	checkReq := check(t, living, add(t, first, living))
	add(t, first, damaged)
	stop()
	port := ovs.Port{
		Name:        Attachment{damaged.ContainerID, damaged.IfName}.HostVeth(),
		ExternalIDs: map[string]string{IDSandbox: damaged.ContainerID, IDIfName: "eth0", IDIP: "10.128.2.300"},
	}
	if _, err := n.bridge.AddPort(t.Context(), port); err != nil {
		t.Fatal(err)
	}

	second, _ := n.boot(t)
	second.links = unlisted{second.links}
	if err := second.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitCheck(t, second, checkReq) // this store runs already, and takes both pods' flows one by one
	if left := n.residue(t); !slices.Contains(left, "port "+port.Name) || !slices.Contains(left, "device "+port.Name) {
		t.Errorf("of the pod that nobody knows there is %v", left)
	}
	del(t, second, living)
	del(t, second, damaged)
	n.wantClean(t)
}

// unlisted is a kernel that lists none of its devices.
type unlisted struct{ Links }

func (unlisted) List(context.Context) (map[string]string, error) { return map[string]string{}, nil }

// The predecessor died while vswitchd was giving the port its number, which comes while the successor starts. Another pod has died
// meanwhile. The store writes nothing yet.
func TestRecoverWaitsForNoFlow(t *testing.T) {
	n := newNode(t)
	first, stop := n.start(t)
	req, gone := n.addPod("web", newNetns(t)), n.addPod("gone", newNetns(t))
	checkReq := check(t, req, add(t, first, req))
	add(t, first, gone)
	stop()
	if err := (hostLinks{n.host, Kernel{}}).Delete(t.Context(), Attachment{gone.ContainerID, gone.IfName}.HostVeth()); err != nil {
		t.Fatal(err)
	}
	second, _ := n.boot(t)
	late := &lateNumber{Switch: second.bridge}
	second.bridge = late
	second.flows = unwritten{second.flows}
	if err := second.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	if late.asked < 2 {
		t.Error("the number did not change in between")
	}
	second.flows = second.flows.(unwritten).podFlows
	if err := second.sweep(t.Context(), allValid); err != nil {
		t.Error(err)
	}
	awaitCheck(t, second, checkReq)
	del(t, second, req)
	n.wantClean(t)
}

// lateNumber has ports without a number when it is asked first.
type lateNumber struct {
	Switch
	asked int
}

func (l *lateNumber) ListPorts(ctx context.Context) ([]ovs.Port, error) {
	ports, err := l.Switch.ListPorts(ctx)
	if l.asked++; l.asked == 1 {
		for i := range ports {
			ports[i].OFPort = 0
		}
	}
	return ports, err
}

// unwritten are flows that never reach the switch.
type unwritten struct{ podFlows }

func (unwritten) set(ctx context.Context, _ Pod, _ *corev1.Pod) error {
	<-ctx.Done()
	return ctx.Err()
}

func (unwritten) remove(Attachment) func(context.Context) error {
	return func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}
}

func TestNothingBeforeRecover(t *testing.T) {
	n := newNode(t)
	a, _ := n.boot(t)
	req := n.addPod("web", newNetns(t))
	if _, err := a.Add(t.Context(), req); code(err) != types.ErrTryAgainLater {
		t.Errorf("ADD: %v", err)
	}
	for name, call := range map[string]func(context.Context, *cniserver.Request) error{"DEL": a.Del, "CHECK": a.Check, "GC": a.GC} {
		if err := call(t.Context(), req); code(err) != types.ErrTryAgainLater {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := a.Status(t.Context()); code(err) != types.ErrPluginNotAvailable {
		t.Errorf("STATUS: %v", err)
	}
	if err := a.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := a.Status(t.Context()); err != nil {
		t.Errorf("STATUS: %v", err)
	}
}
