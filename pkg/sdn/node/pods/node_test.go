package pods

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	apitypes "k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/inputs"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/ipam"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/macvlan"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/podinterface"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/veth"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/await"
)

func TestMain(m *testing.M) {
	klog.SetLogger(klog.Logger{}) // discards: most tests are about errors
	await.VerifyTestMain(m)
}

// node is the kernel, switch and disk of a test. Agents are started and stopped on it.
type node struct {
	host    ns.NetNS // the node's network namespace, a new one
	bridge  bridge
	flows   func() []string // on the switch
	ipamDir string
	options podinterface.Options
	mode    config.Mode
	api     api
	pods    Pods // api, unless the test replaces it

	fetchNamespace func(ctx context.Context, name string) (apitypes.UID, error)

	previous  map[uint64]config.VNID // of flows of the previous agent, by cookie
	recovered chan struct{}          // if not nil, the store's first write waits for it, as in the product
}

// bridge is a fake or real one.
type bridge interface {
	ovs.Interface
	Missing(ctx context.Context, flows []*ovs.Flow) ([]*ovs.Flow, error)
	DumpMeters(ctx context.Context) ([]ovs.Meter, error)
}

// agent is a running agent.
type agent struct {
	*Manager

	faults *faults
	store  *flowstore.Store
	events *events
}

// events records Events.
type events struct {
	mu      sync.Mutex
	emitted []string
}

func (e *events) WarnPod(p sandbox.Pod, reason, message string) {
	e.record("pod "+p.Name, reason, message)
}
func (e *events) WarnNode(reason, message string) { e.record("node", reason, message) }

func (e *events) record(object, reason, message string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.emitted = append(e.emitted, object+": "+reason+": "+message)
}

// want checks that one Event has each prefix.
func (e *events) want(t testing.TB, prefixes ...string) {
	t.Helper()
	for _, prefix := range prefixes {
		if n := e.count(prefix); n != 1 {
			t.Errorf("got %d Events with prefix %q, want 1, in\n%s", n, prefix, e)
		}
	}
}

func (e *events) String() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return strings.Join(e.emitted, "\n")
}

// count returns the number of Events with the prefix.
func (e *events) count(prefix string) (n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, s := range e.emitted {
		if strings.HasPrefix(s, prefix) {
			n++
		}
	}
	return n
}

func options() podinterface.Options {
	return podinterface.Options{
		NodeName:        "node1",
		Subnets:         []netip.Prefix{netip.MustParsePrefix("10.128.2.0/23")},
		ClusterNetworks: []netip.Prefix{netip.MustParsePrefix("10.128.0.0/14")},
		ServiceNetwork:  netip.MustParsePrefix("172.30.0.0/16"),
		MTU:             1450,
		Datapath:        ovs.DatapathNetdev,
		Devices:         []string{"br0", "tun0", "vxlan0"},
	}
}

// newNode makes a node with a fake switch.
func newNode(t testing.TB) *node {
	t.Helper()
	fake := ovs.NewFake("br0")
	n := &node{host: newNetns(t), bridge: fake, flows: fake.Flows, ipamDir: t.TempDir(), options: options(), mode: config.ModeSubnet, api: api{}}
	n.pods = n.api
	n.ensureBridge(t)
	return n
}

func (n *node) ensureBridge(t testing.TB) {
	t.Helper()
	err := n.bridge.EnsureBridge(t.Context(), ovs.Bridge{Name: "br0", DatapathType: ovs.DatapathNetdev, TableNames: pipeline.TableNames()})
	if err != nil {
		t.Fatal(err)
	}
}

// newNetns makes a network namespace that lives as long as the test. It skips the test without root.
func newNetns(t testing.TB) ns.NetNS {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	netns, err := ns.TempNetNS()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { netns.Close() }) // may be closed by the test
	return netns
}

// path returns a path of the namespace: it has no name in the file system.
func path(netns ns.NetNS) string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), netns.Fd()) }

// compiler returns the pipeline with the node's options.
func (n *node) compiler() pipeline.Node {
	return pipeline.Node{
		Mode:            n.mode,
		ClusterNetworks: n.options.ClusterNetworks,
		ServiceNetwork:  n.options.ServiceNetwork,
		Subnets:         n.options.Subnets,
		VXLANPort:       config.DefaultVXLANPort,
	}
}

// start starts an agent that lives until the test ends or the returned function is called. It waits until the flows of all recovered pods are installed or rejected:
// unlike in the product, the store runs before Recover, and its first replacement may delete the flows of pods that are not recovered yet.
func (n *node) start(t testing.TB) (*agent, func()) {
	t.Helper()
	a, stop := n.boot(t)
	if err := a.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, flows := range a.pending {
		if err := flows.wait(t.Context()); err != nil {
			t.Logf("flows of recovered pod %s: %v", flows.pod.Name, err)
		}
	}
	return a, stop
}

// boot is start without Recover.
func (n *node) boot(t testing.TB) (*agent, func()) {
	t.Helper()
	addresses, err := ipam.Open(n.ipamDir, "ovsdn", n.options.Subnets)
	if err != nil {
		t.Fatal(err)
	}
	flows := flowstore.New(n.bridge)
	flows.Source(inputs.KindVNID, flowstore.Source{Default: config.GlobalVNID})
	flows.Source(inputs.KindNamespaceUID, flowstore.Source{Default: apitypes.UID("")})
	if n.mode == config.ModeSubnet {
		flows.Source(inputs.KindNamespaceVNID, flowstore.Source{Default: config.GlobalVNID})
	}
	flows.Source(inputs.KindPodPolicies, flowstore.Source{Default: pipeline.PodPolicies{}})
	flows.Source(inputs.KindEgressFirewall, flowstore.Source{Default: pipeline.EgressFirewallID(0)})
	flows.Source(inputs.KindEgressIPs, flowstore.Source{Default: inputs.EgressIPs{}})
	a := &agent{faults: &faults{}, store: flows, events: &events{}}
	a.Manager, err = New(n.options, Dependencies{
		Pods:           n.pods,
		IPAM:           faultyIPAM{addresses, a.faults},
		Links:          faultyLinks{hostLinks{n.host, veth.Links{}}, a.faults},
		Macvlans:       faultyMacvlans{hostMacvlans{n.host, macvlan.Links{}}, a.faults},
		Switch:         faultySwitch{n.bridge, a.faults},
		Store:          flows,
		FetchNamespace: n.fetchNamespace,
		Compile:        n.compiler().Pod,
		Events:         a.events,

		PreviousVNIDs: func(context.Context) (map[uint64]config.VNID, error) { return n.previous, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	a.flows = faultyFlows{a.flows, a.faults}
	a.cleanupTimeout = time.Minute // the cleanup never times out on a busy processor
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if n.recovered != nil {
			select {
			case <-n.recovered:
			case <-ctx.Done():
				return
			}
		}
		if err := flows.Run(ctx); err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("flow store: %v", err)
		}
	}()
	stop := sync.OnceFunc(func() {
		cancel()
		<-done
		addresses.Close()
	})
	t.Cleanup(stop)
	return a, stop
}

// residue returns the leases, ports, flows and devices of pods on the node.
func (n *node) residue(t testing.TB) []string {
	t.Helper()
	entries, err := os.ReadDir(n.ipamDir + "/ovsdn")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, e := range entries {
		if _, err := netip.ParseAddr(e.Name()); err == nil {
			found = append(found, "lease "+e.Name())
		}
	}
	ports, err := n.bridge.ListPorts(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range ports {
		if p.ExternalIDs[sandbox.IDSandbox] != "" {
			found = append(found, "port "+p.Name)
		}
	}
	for _, f := range n.flows() {
		found = append(found, "flow "+f)
	}
	for _, d := range devices(t, n.host) {
		if strings.HasPrefix(d, "veth") {
			found = append(found, "device "+d)
		}
	}
	return found
}

// devices returns the names of the namespace's devices.
func devices(t testing.TB, netns ns.NetNS) []string {
	t.Helper()
	var names []string
	if err := netns.Do(func(ns.NetNS) error {
		links, err := netlinksafe.LinkList()
		for _, l := range links {
			names = append(names, l.Attrs().Name)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	return names
}

// hostLinks calls veth.Links in the node's network namespace.
type hostLinks struct {
	host ns.NetNS
	veth.Links
}

func (l hostLinks) Create(ctx context.Context, pod ns.NetNS, hostVeth string, i veth.Interface) error {
	return l.host.Do(func(ns.NetNS) error { return l.Links.Create(ctx, pod, hostVeth, i) })
}

func (l hostLinks) SetUp(ctx context.Context, hostVeth string) error {
	return l.host.Do(func(ns.NetNS) error { return l.Links.SetUp(ctx, hostVeth) })
}

func (l hostLinks) RestoreSysctls(ctx context.Context, hostVeth string) (changes []string, err error) {
	err = l.host.Do(func(ns.NetNS) error {
		changes, err = l.Links.RestoreSysctls(ctx, hostVeth)
		return err
	})
	return changes, err
}

func (l hostLinks) Delete(ctx context.Context, hostVeth string) error {
	return l.host.Do(func(ns.NetNS) error { return l.Links.Delete(ctx, hostVeth) })
}

func (l hostLinks) Find(ctx context.Context, hostVeth string) (alias string, exists bool, err error) {
	err = l.host.Do(func(ns.NetNS) error {
		alias, exists, err = l.Links.Find(ctx, hostVeth)
		return err
	})
	return alias, exists, err
}

func (l hostLinks) SetAlias(ctx context.Context, hostVeth, alias string) error {
	return l.host.Do(func(ns.NetNS) error { return l.Links.SetAlias(ctx, hostVeth, alias) })
}

func (l hostLinks) Update(ctx context.Context, pod ns.NetNS, hostVeth string, i veth.Interface) (changes []string, err error) {
	err = l.host.Do(func(ns.NetNS) error {
		changes, err = l.Links.Update(ctx, pod, hostVeth, i)
		return err
	})
	return changes, err
}

func (l hostLinks) List(ctx context.Context) (aliases map[string]string, err error) {
	err = l.host.Do(func(ns.NetNS) error {
		aliases, err = l.Links.List(ctx)
		return err
	})
	return aliases, err
}

// check returns the CHECK request after an ADD with that result.
func check(t testing.TB, req *cniserver.Request, result *current.Result) *cniserver.Request {
	t.Helper()
	prev, err := json.Marshal(result)
	if err != nil {
		t.Fatal(err)
	}
	c := *req
	c.Command = cniserver.CommandCheck
	c.Config = fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":"ovsdn","type":"ovsdn-cni","prevResult":%s}`, prev)
	return &c
}
