package hostports

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"k8s.io/klog/v2/ktesting"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/listeners"
	"github.com/ovsdn/ovsdn/test/await"
)

func TestMain(m *testing.M) { await.VerifyTestMain(m) }

// fakePlugin has rules by sandbox.
type fakePlugin struct {
	mu    sync.Mutex
	rules map[string]record
	adds  int

	fails       error // of Add
	unlisted    error // of Missing
	undeletable error // of Del
	unusable    error // of Backend
	searches    int   // calls of Backend
	lists       int   // calls of RemoveUnknown
	unshared    bool  // the rules that all share are missing
}

func (f *fakePlugin) Add(_ context.Context, r record) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.adds++
	f.unshared = false
	if _, ok := f.rules[r.Sandbox]; ok {
		return fmt.Errorf("rules of sandbox %s exist", r.Sandbox)
	}
	f.rules[r.Sandbox] = r // a failed ADD leaves some
	return f.fails
}

func (f *fakePlugin) Missing(_ context.Context, all []record) (missing []record, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range all {
		if _, ok := f.rules[r.Sandbox]; !ok || f.unshared {
			missing = append(missing, r)
		}
	}
	return missing, f.unlisted
}

func (f *fakePlugin) Del(_ context.Context, r record) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.undeletable != nil {
		return f.undeletable
	}
	delete(f.rules, r.Sandbox)
	return nil
}

func (f *fakePlugin) Backend(ctx context.Context) (Backend, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.searches++
	if f.unusable != nil {
		return "", f.unusable
	}
	return BackendNFTables, ctx.Err()
}

func (f *fakePlugin) RemoveUnknown(_ context.Context, known func() func(string) bool) (removed []string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lists++
	for sandbox, r := range f.rules {
		if id := r.ruleID(); !known()(id) {
			removed = append(removed, id)
			delete(f.rules, sandbox)
		}
	}
	return removed, f.unlisted
}

func (f *fakePlugin) RemoveUnused(context.Context) error { return nil }

func (f *fakePlugin) flush() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = map[string]record{}
}

// sandboxes returns the sandboxes with rules.
func (f *fakePlugin) sandboxes() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []string
	for s := range f.rules {
		all = append(all, s)
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// fakePods is the next handler.
type fakePods struct {
	mu       sync.Mutex
	attached map[Attachment]bool
	addr     net.IP

	beforeRelease func(context.Context, Attachment) error
	attaching     func(Attachment) // called by Add, if not nil
}

func (f *fakePods) Add(_ context.Context, req *cniserver.Request) (*current.Result, error) {
	if f.attaching != nil {
		f.attaching(Attachment{req.ContainerID, req.IfName})
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.attached[Attachment{req.ContainerID, req.IfName}] = true
	return &current.Result{
		CNIVersion: current.ImplementedSpecVersion,
		Interfaces: []*current.Interface{{Name: "veth0"}, {Name: req.IfName, Sandbox: req.Netns}},
		IPs:        []*current.IPConfig{{Interface: current.Int(1), Address: net.IPNet{IP: f.addr, Mask: net.CIDRMask(24, 32)}}},
	}, nil
}

func (f *fakePods) Del(ctx context.Context, req *cniserver.Request) error {
	if err := f.beforeRelease(ctx, Attachment{req.ContainerID, req.IfName}); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.attached, Attachment{req.ContainerID, req.IfName})
	return nil
}

func (f *fakePods) Check(context.Context, *cniserver.Request) error { return nil }
func (f *fakePods) GC(context.Context, *cniserver.Request) error    { return nil }
func (f *fakePods) Status(context.Context) error                    { return nil }

func (f *fakePods) known() map[Attachment]bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := map[Attachment]bool{}
	for a := range f.attached {
		all[a] = true
	}
	return all
}

// node is a node with a plugin and the pods that are attached.
type node struct {
	*Handler
	plugin *fakePlugin
	pods   *fakePods
	dir    string
	mu     sync.Mutex // guards the fields that follow
	events []string
	synced int // updates of the firewall
	routed bool

	listening []listeners.Listener
	declared  map[string]string // holders by mapping
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{
		plugin: &fakePlugin{rules: map[string]record{}}, dir: t.TempDir(),
		pods: &fakePods{attached: map[Attachment]bool{}, addr: net.IPv4(10, 128, 2, 5)},
	}
	n.restart(t)
	return n
}

// restart replaces the agent.
func (n *node) restart(t *testing.T) {
	t.Helper()
	ports, err := New(Options{
		Plugin: n.plugin, Dir: n.dir, VXLANPort: 4789,
		Attached:      n.pods.known,
		Holder:        func(m Mapping, _ []netip.Addr) (string, error) { return n.declared[m.String()], nil },
		SyncFirewall:  func(context.Context) error { n.synced++; return nil },
		RouteLoopback: func(permit bool) error { n.routed = permit; return nil },
		WarnPod:       func(namespace, name, _, reason, message string) { n.event(namespace+"/"+name, reason, message) },
		WarnNode:      func(reason, message string) { n.event("node", reason, message) },
	})
	if err != nil {
		t.Fatal(err)
	}
	ports.listeners = func(string) ([]listeners.Listener, error) { return n.listening, nil }
	ports.localAddrs = func() ([]netip.Addr, error) { return []netip.Addr{netip.MustParseAddr("192.0.2.1")}, nil }
	ports.flushPod, ports.flushNotMapped = func(record) error { return nil }, func(record, []netip.Addr) error { return nil }
	n.pods.beforeRelease = ports.Release
	n.Handler = ports.Handler(n.pods)
}

func (n *node) event(object, reason, message string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.events = append(n.events, object+": "+reason+": "+message)
}

// request returns the request of a pod of the name's namespace default.
func request(t *testing.T, command, sandbox, pod string, mappings ...Mapping) *cniserver.Request {
	t.Helper()
	config, err := json.Marshal(map[string]any{
		"cniVersion": "1.1.0", "name": "ovsdn", "type": cniserver.PluginName, "runtimeConfig": map[string]any{"portMappings": mappings},
	})
	if err != nil {
		t.Fatal(err)
	}
	return &cniserver.Request{
		Command: command, ContainerID: sandbox, IfName: "eth0", Netns: "/run/netns/" + sandbox, Config: config,
		Args: "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=" + pod + ";K8S_POD_UID=uid-" + pod,
	}
}

func tcp(hostIP string, port int) Mapping { return Mapping{hostIP, port, 80, protocolTCP} }
func udp(hostIP string, port int) Mapping { return Mapping{hostIP, port, 53, protocolUDP} }

func (n *node) add(t *testing.T, sandbox, pod string, mappings ...Mapping) error {
	t.Helper()
	_, err := n.Add(testContext(t), request(t, cniserver.CommandAdd, sandbox, pod, mappings...))
	return err
}

func (n *node) mustAdd(t *testing.T, sandbox, pod string, mappings ...Mapping) {
	t.Helper()
	if err := n.add(t, sandbox, pod, mappings...); err != nil {
		t.Fatalf("ADD of %s: %v", pod, err)
	}
}

func (n *node) mustDel(t *testing.T, sandbox, pod string, mappings ...Mapping) {
	t.Helper()
	if err := n.Del(testContext(t), request(t, cniserver.CommandDel, sandbox, pod, mappings...)); err != nil {
		t.Fatalf("DEL of %s: %v", pod, err)
	}
}

// wantRules compares the sandboxes with rules, and the stored ones.
func (n *node) wantRules(t *testing.T, sandboxes string) {
	t.Helper()
	if got := n.plugin.sandboxes(); got != sandboxes {
		t.Errorf("sandboxes with rules: got %q, want %q", got, sandboxes)
	}
	stored, err := records(n.dir).list()
	var got []string
	for _, r := range stored {
		got = append(got, r.Sandbox)
	}
	if err != nil || strings.Join(got, " ") != sandboxes {
		t.Errorf("stored sandboxes: got %q (%v), want %q", got, err, sandboxes)
	}
}

func testContext(t *testing.T) context.Context {
	t.Helper()
	_, ctx := ktesting.NewTestContext(t)
	return ctx
}

// wantCNIError checks the code of a CNI error, and that its text contains all parts.
func wantCNIError(t *testing.T, err error, code uint, parts ...string) {
	t.Helper()
	var cni *types.Error
	if !errors.As(err, &cni) || cni.Code != code {
		t.Errorf("got error %v, want a CNI error of code %d", err, code)
		return
	}
	for _, p := range parts {
		if !strings.Contains(cni.Error(), p) {
			t.Errorf("got error %v, want one with %q", cni, p)
		}
	}
}
