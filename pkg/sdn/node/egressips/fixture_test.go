package egressips

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	networkv1 "github.com/openshift/api/network/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	fcache "k8s.io/client-go/tools/cache/testing"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/inputs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/await"
)

const testTimeout = 90 * time.Second

func TestMain(m *testing.M) { await.VerifyTestMain(m) }

// listOnly makes the reflector list objects, since the source does not support streaming lists.
type listOnly struct{ cache.ListerWatcher }

func (listOnly) IsWatchListSemanticsUnSupported() bool { return true }

// cluster has the objects, the switch and the host of node1, which survive a restart of the agent.
type cluster struct {
	bridge                     *ovs.Fake
	real                       *native.Native // in place of bridge; nil: none
	netNamespaces, hostSubnets *fcache.FakeControllerSource

	mu    sync.Mutex
	log   []string // sets of the host's egress IPs, with the flows at that time
	api   map[string]*networkv1.NetNamespace
	pods  map[string]string // namespaces by address
	event []string
}

// agent is an agent of node1.
type agent struct {
	*EgressIPs
	*cluster
	t *testing.T
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{
		bridge: ovs.NewFake("br0"), netNamespaces: fcache.NewFakeControllerSource(), hostSubnets: fcache.NewFakeControllerSource(),
		api: map[string]*networkv1.NetNamespace{}, pods: map[string]string{},
	}
	t.Cleanup(func() { c.netNamespaces.Shutdown(); c.hostSubnets.Shutdown() })
	if err := c.bridge.EnsureBridge(t.Context(), ovs.Bridge{Name: "br0", DatapathType: "netdev"}); err != nil {
		t.Fatal(err)
	}
	return c
}

func testNode() pipeline.Node {
	return pipeline.Node{
		Mode:            config.ModeNetworkPolicy,
		ClusterNetworks: []netip.Prefix{netip.MustParsePrefix("10.128.0.0/14")},
		ServiceNetwork:  netip.MustParsePrefix("172.30.0.0/16"),
		Subnets:         []netip.Prefix{netip.MustParsePrefix("10.128.0.0/23")},
		VTEP:            netip.MustParseAddr("192.0.2.1"),
		VXLANPort:       4789,
	}
}

// boot creates an agent whose informers run, and which is not primed.
func (c *cluster) boot(t *testing.T) (a *agent, start func(), stop func()) {
	t.Helper()
	var bridge ovs.Interface = c.bridge
	var dump Bridge = dumper{c.bridge}
	static := pipeline.State{Flows: []*ovs.Flow{{Table: 20, Actions: []goovs.Action{goovs.Drop()}}}}
	var err error
	if c.real != nil {
		bridge, dump = c.real, c.real
		if static, err = testNode().Static(); err != nil {
			t.Fatal(err)
		}
	}
	st := flowstore.New(bridge)
	netNamespaces := cache.NewSharedIndexInformer(listOnly{c.netNamespaces}, &networkv1.NetNamespace{}, 0, cache.Indexers{})
	hostSubnets := cache.NewSharedIndexInformer(listOnly{c.hostSubnets}, &networkv1.HostSubnet{}, 0, cache.Indexers{})
	initial := st.Set(pipeline.Owner{Kind: pipeline.KindNode, Key: "node1"}, static)
	e, err := New(Options{
		Node: testNode(), NodeName: "node1", NetNamespaces: netNamespaces, HostSubnets: hostSubnets, Get: c.get, Store: st, Initial: initial,
		Bridge: dump, Addresses: c, NamespaceOf: c.namespaceOf, WarnNode: c.warn,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	t.Cleanup(stop)
	running.Go(func() { netNamespaces.RunWithContext(ctx) })
	running.Go(func() { hostSubnets.RunWithContext(ctx) })
	if err := e.Prime(ctx); err != nil {
		t.Fatal(err)
	}
	start = func() {
		running.Go(func() { e.Run(ctx) })
		running.Go(func() {
			if err := st.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	return &agent{EgressIPs: e, cluster: c, t: t}, start, stop
}

// start starts an agent, with pods as at its start.
func (c *cluster) start(t *testing.T, pods ...string) (*agent, func()) {
	t.Helper()
	a, start, stop := c.boot(t)
	for _, pod := range pods {
		a.attach(pod)
	}
	start()
	return a, stop
}

// Set implements Addresses.
func (c *cluster) Set(ips []netip.Addr) {
	var local []string // IPs whose flows translate sources on this node
	for _, f := range c.bridge.Flows() {
		if _, rest, found := strings.Cut(f, "nat(src="); found {
			ip, _, _ := strings.Cut(rest, ")")
			local = append(local, ip)
		}
	}
	slices.Sort(local)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.log = append(c.log, fmt.Sprintf("host %v flows %v", ips, local))
}

func (c *cluster) get(_ context.Context, name string) (*networkv1.NetNamespace, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if o := c.api[name]; o != nil {
		return o, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "netnamespaces"}, name)
}

func (c *cluster) namespaceOf(addr netip.Addr) (string, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	namespace, known := c.pods[addr.String()]
	return namespace, known
}

func (c *cluster) warn(reason, message string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.event = append(c.event, reason+": "+message)
}

// dumper reads the flows of the fake switch.
type dumper struct{ *ovs.Fake }

func (d dumper) DumpFlows(context.Context) ([]ovs.DumpedFlow, error) {
	var all []ovs.DumpedFlow
	for _, text := range d.Flows() {
		f := ovs.DumpedFlow{Text: text}
		for field := range strings.SplitSeq(text, ",") {
			if value, found := strings.CutPrefix(field, "cookie="); found {
				f.Cookie, _ = strconv.ParseUint(value, 0, 64)
			}
			if value, found := strings.CutPrefix(field, "table="); found {
				f.Key.Table, _ = strconv.Atoi(value)
			}
		}
		all = append(all, f)
	}
	return all, nil
}

// netNamespace returns a NetNamespace, named as namespace or namespace@UID of the Namespace.
func netNamespace(name string, ips ...string) *networkv1.NetNamespace {
	name, uid, _ := strings.Cut(name, "@")
	o := &networkv1.NetNamespace{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("object of " + uid)}, NetName: name, NetID: 100}
	if uid != "" {
		o.Annotations = map[string]string{config.NamespaceUIDAnnotation: uid}
	}
	for _, ip := range ips {
		o.EgressIPs = append(o.EgressIPs, networkv1.NetNamespaceEgressIP(ip))
	}
	return o
}

// hostSubnet returns the HostSubnet of a node, such as node1, which hosts the IPs.
func hostSubnet(name string, ips ...string) *networkv1.HostSubnet {
	n := strings.TrimPrefix(name, "node")
	o := &networkv1.HostSubnet{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{networkv1.NodeUIDAnnotation: "uid-" + n}},
		Host:       name, HostIP: "192.0.2." + n, Subnet: "10.128." + n + "0.0/23",
	}
	for _, ip := range ips {
		o.EgressIPs = append(o.EgressIPs, networkv1.HostSubnetEgressIP(ip))
	}
	return o
}

func unreachable(o *networkv1.HostSubnet) *networkv1.HostSubnet {
	o.Annotations[config.EgressUnreachableAnnotation] = "2026-11-25T10:00:00Z"
	return o
}

func owner(pod string) pipeline.Owner { return pipeline.Owner{Kind: pipeline.KindPod, Key: pod} }

// attach sets the flow of a pod as package podflows does. A pod is named by its Namespace and the last byte of its address, such as shop@UID/5.
func (a *agent) attach(pod string) *flowstore.Commit {
	namespace, last, _ := strings.Cut(pod, "/")
	name, uid, _ := strings.Cut(namespace, "@")
	input := inputs.NamespaceEgressIPs(name, types.UID(uid))
	addr := netip.MustParseAddr("10.128.0." + last)
	return a.store.SetAll(flowstore.Change{Owner: owner(pod), Reads: []flowstore.Input{input}, Compile: func(v *flowstore.Values) pipeline.State {
		return a.podState(addr, flowstore.Read[inputs.EgressIPs](v, input))
	}})[0]
}

// podState compiles the pod with the address, whose last byte is its port.
func (a *agent) podState(addr netip.Addr, ips inputs.EgressIPs) pipeline.State {
	addrs := []netip.Addr{addr}
	return a.node.Pod(pipeline.Pod{OFPort: int(addr.As4()[3]), VNID: 100, MAC: config.MAC(addr), Addrs: addrs, EgressIP: ips.Of(addrs)})
}

// podChanges returns how many of a pod's flows an egress IP changes or adds.
func (a *agent) podChanges(last string) (count int) {
	addr := netip.MustParseAddr("10.128.0." + last)
	flows := func(ips inputs.EgressIPs) map[string]string {
		all := map[string]string{}
		for _, f := range a.podState(addr, ips).Flows {
			text, err := ovs.FlowText(f)
			if err != nil {
				a.t.Fatal(err)
			}
			match, actions, _ := strings.Cut(text, "actions=")
			all[match] = actions
		}
		return all
	}
	before := flows(inputs.EgressIPs{})
	for match, actions := range flows(inputs.EgressIPs{Asks: true}) {
		if before[match] != actions {
			count++
		}
		delete(before, match)
	}
	return count + len(before)
}

// sources returns the egress IPs of pods in flows of table 20 as pod=IP, and of table 101 as ip->node, sorted; IPs of this node without a node.
func (c *cluster) sources() []string {
	var all []string
	for _, f := range c.bridge.Flows() {
		match, actions, _ := strings.Cut(f, "actions=")
		if strings.Contains(match, "table=101,") && strings.Contains(match, "priority=100,") {
			all = append(all, addrOf(match, "reg11=", ",")+"->"+between(actions, "set_field:", "->tun_dst"))
		}
		if strings.Contains(match, "table=20,") && strings.Contains(match, "nw_src=10.128.0.") && !strings.Contains(match, "nw_dst") {
			source := "node"
			if value, _, found := strings.Cut(actions, "->NXM_NX_REG11[]"); found {
				source = addrOf(value[strings.LastIndex(value, "load:"):], "load:", ",")
			}
			all = append(all, between(match, "nw_src=10.128.0.", ",")+"="+source)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func between(s, before, after string) string {
	end := strings.Index(s, after)
	if _, rest, found := strings.Cut(s, before); found && after == "," {
		value, _, _ := strings.Cut(rest, after)
		return value
	}
	if end < 0 {
		return ""
	}
	return s[strings.LastIndex(s[:end], before)+len(before) : end]
}

// addrOf returns the address of a number after the text.
func addrOf(s, before, after string) string {
	value := between(s, before, after)
	n, err := strconv.ParseUint(value, 0, 32)
	if err != nil {
		return value
	}
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}).String() //nolint:gosec // the bytes of 32 bits
}

// want waits for the flows.
func (a *agent) want(sources ...string) {
	a.t.Helper()
	sources = slices.Sorted(slices.Values(sources))
	await.OK(a.t, testTimeout, func(context.Context) error {
		if got := a.sources(); !slices.Equal(got, sources) {
			return fmt.Errorf("got %q\nwant %q", got, sources)
		}
		return nil
	})
}

// awaitHosting waits until the agent knows which node hosts the IP.
func (a *agent) awaitHosting(ip, node string) {
	a.t.Helper()
	await.OK(a.t, testTimeout, func(context.Context) error {
		a.EgressIPs.mu.Lock()
		defer a.EgressIPs.mu.Unlock()
		if got := a.table.IP(netip.MustParseAddr(ip)).Nodes; !slices.Equal(got, []string{node}) {
			return fmt.Errorf("%s is hosted by %q, want %s", ip, got, node)
		}
		return nil
	})
}

// wantHost waits for the last set of the host's egress IPs, with the flows at that time.
func (a *agent) wantHost(last string) {
	a.t.Helper()
	await.OK(a.t, testTimeout, func(context.Context) error {
		a.cluster.mu.Lock()
		defer a.cluster.mu.Unlock()
		if len(a.log) == 0 || a.log[len(a.log)-1] != last {
			return fmt.Errorf("got %q, want %q", a.log, last)
		}
		return nil
	})
}
