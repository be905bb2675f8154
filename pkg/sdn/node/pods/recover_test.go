package pods

import (
	"context"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	goovs "github.com/digitalocean/go-openvswitch/ovs"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/veth"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

func TestRecover(t *testing.T) {
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
	if diff := cmp.Diff(before, second.Pods(), cmpopts.EquateComparable(netip.Addr{}), cmpopts.IgnoreFields(sandbox.Pod{}, "NamespaceUID")); diff != "" {
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

func TestRecover_removesStale(t *testing.T) {
	n := newNode(t)
	first, stop := n.start(t)
	ended, lost, invalid, truncated := n.addPod("ended", newNetns(t)), n.addPod("lost", newNetns(t)), n.addPod("invalid", newNetns(t)), n.addPod("truncated", newNetns(t))
	for _, r := range []*cniserver.Request{ended, lost, invalid, truncated} {
		add(t, first, r)
	}
	stop()

	hostVeth := func(r *cniserver.Request) string {
		return sandbox.Attachment{Sandbox: r.ContainerID, IfName: r.IfName}.HostVeth()
	}
	// The node was rebooted: the device does not exist.
	noError(t, (hostLinks{n.host, veth.Links{}}).Delete(t.Context(), hostVeth(ended)))
	// Leases are deleted or truncated.
	noError(t, os.Remove(n.ipamDir+"/ovsdn/10.128.2.3"))
	noError(t, os.Truncate(n.ipamDir+"/ovsdn/10.128.2.5", 0))
	// Another program changed external_ids.
	port := ovs.Port{Name: hostVeth(invalid), ExternalIDs: map[string]string{sandbox.IDSandbox: invalid.ContainerID, sandbox.IDIfName: "eth0", sandbox.IDIP: "10.128.2.300"}}
	_, err := n.bridge.AddPort(t.Context(), port)
	noError(t, err)
	// An empty lease of an unused address, and a lease of a sandbox without a port.
	noError(t, os.WriteFile(n.ipamDir+"/ovsdn/10.128.3.1", nil, 0o600))
	noError(t, os.WriteFile(n.ipamDir+"/ovsdn/10.128.3.2", []byte("unknown\r\neth0"), 0o600))
	// A port that is not a pod's.
	_, err = n.bridge.AddPort(t.Context(), ovs.Port{Name: "tun0", Type: "internal"})
	noError(t, err)

	second, _ := n.start(t)
	var names []string
	for _, p := range second.Pods() {
		names = append(names, p.Name)
	}
	// The pod with invalid external_ids is recovered from the alias of its host veth.
	if diff := cmp.Diff([]string{"invalid", "lost", "truncated"}, names); diff != "" {
		t.Errorf("pods (-want +got):\n%s", diff)
	}
	var got []string
	for _, r := range n.residue(t) {
		if !strings.HasPrefix(r, "flow ") {
			got = append(got, r)
		}
	}
	want := []string{
		"lease 10.128.2.3", "lease 10.128.2.4", "lease 10.128.2.5",
		"port " + hostVeth(lost), "port " + hostVeth(invalid), "port " + hostVeth(truncated),
		"device " + hostVeth(lost), "device " + hostVeth(invalid), "device " + hostVeth(truncated),
	}
	if diff := cmp.Diff(want, got, cmpopts.SortSlices(strings.Compare)); diff != "" {
		t.Errorf("residue (-want +got):\n%s", diff)
	}
	for _, r := range []*cniserver.Request{ended, lost, invalid, truncated} {
		del(t, second, r)
	}
	n.wantClean(t)
}

// The kernel omits devices from its list while others are created and deleted. Their pods are recovered, also one with invalid
// external_ids.
func TestRecover_unlistedDevices(t *testing.T) {
	n := newNode(t)
	first, stop := n.start(t)
	running, invalid := n.addPod("running", newNetns(t)), n.addPod("invalid", newNetns(t))
	checkReq := check(t, running, add(t, first, running))
	add(t, first, invalid)
	stop()
	port := ovs.Port{
		Name:        sandbox.Attachment{Sandbox: invalid.ContainerID, IfName: invalid.IfName}.HostVeth(),
		ExternalIDs: map[string]string{sandbox.IDSandbox: invalid.ContainerID, sandbox.IDIfName: "eth0", sandbox.IDIP: "10.128.2.300"},
	}
	if _, err := n.bridge.AddPort(t.Context(), port); err != nil {
		t.Fatal(err)
	}

	second, _ := n.boot(t)
	second.links = unlisted{second.links}
	if err := second.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitCheck(t, second, checkReq) // this store runs already, and installs the flows of one pod after the other
	if left := n.residue(t); !slices.Contains(left, "port "+port.Name) || !slices.Contains(left, "device "+port.Name) {
		t.Errorf("got residue %v, want port and device %s", left, port.Name)
	}
	del(t, second, running)
	del(t, second, invalid)
	n.wantClean(t)
}

// unlisted is a kernel that omits all devices from its list.
type unlisted struct{ Links }

func (unlisted) List(context.Context) (map[string]string, error) { return map[string]string{}, nil }

// The agent ended while vswitchd was assigning the port's number, which is assigned while the next agent starts. Another pod was deleted
// in between. Recover returns although the store installs no flows yet.
func TestRecover_doesNotWaitForFlows(t *testing.T) {
	n := newNode(t)
	first, stop := n.start(t)
	req, ended := n.addPod("web", newNetns(t)), n.addPod("ended", newNetns(t))
	checkReq := check(t, req, add(t, first, req))
	add(t, first, ended)
	stop()
	if err := (hostLinks{n.host, veth.Links{}}).Delete(t.Context(), sandbox.Attachment{Sandbox: ended.ContainerID, IfName: ended.IfName}.HostVeth()); err != nil {
		t.Fatal(err)
	}
	second, _ := n.boot(t)
	late := &lateOFPort{Switch: second.bridge}
	second.bridge = late
	second.flows = uninstalled{second.flows}
	if err := second.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	if late.lists < 2 {
		t.Errorf("got %d lists of ports, want another after the number was assigned", late.lists)
	}
	second.flows = second.flows.(uninstalled).podFlows
	if err := second.reconcile(t.Context(), allValid); err != nil {
		t.Error(err)
	}
	awaitCheck(t, second, checkReq)
	del(t, second, req)
	n.wantClean(t)
}

// lateOFPort returns ports without a number in its first list.
type lateOFPort struct {
	Switch
	lists int
}

func (l *lateOFPort) ListPorts(ctx context.Context) ([]ovs.Port, error) {
	ports, err := l.Switch.ListPorts(ctx)
	if l.lists++; l.lists == 1 {
		for i := range ports {
			ports[i].OFPort = 0
		}
	}
	return ports, err
}

// uninstalled are flows that are never installed.
type uninstalled struct{ podFlows }

func (uninstalled) Set(ctx context.Context, _ sandbox.Pod, _ *corev1.Pod) error {
	<-ctx.Done()
	return ctx.Err()
}

func (uninstalled) Remove(sandbox.Attachment) func(context.Context) error {
	return func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}
}

func TestRequests_beforeRecover(t *testing.T) {
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

// The flows of a recovered pod conflict with those of another object: unlike a rejection by the switch, only the pod reports it.
func TestRecover_conflictingFlows(t *testing.T) {
	n := newNode(t)
	first, stop := n.start(t)
	req := n.addPod("web", newNetns(t))
	checkReq := check(t, req, add(t, first, req))
	pod := first.Pods()[0]
	rival := *first.store.Compiled(pod.Owner()).Flows[0]
	rival.Actions = []ovs.Action{goovs.Drop()}
	stop()

	second, _ := n.boot(t)
	owner := pipeline.Owner{Kind: pipeline.KindNode, Key: "rival"}
	noError(t, second.store.Set(owner, pipeline.State{Flows: []*ovs.Flow{&rival}}).Wait(t.Context()))
	noError(t, second.Recover(t.Context()))
	second.reportRejected(t.Context())
	if err := second.Check(t.Context(), checkReq); err == nil || !strings.Contains(err.Error(), owner.String()) {
		t.Errorf("got error %v of CHECK, want one with the other object", err)
	}
	second.events.want(t, "pod web: "+eventreason.NetworkFlowsRefused+": pod default/web has no network: its flows conflict with those of another object: ")

	noError(t, second.store.Delete(owner).Wait(t.Context()))
	noError(t, second.reconcile(t.Context(), allValid))
	noError(t, second.Check(t.Context(), checkReq))
}
