package egresspolicy

import (
	"context"
	"fmt"
	"hash/crc32"
	"maps"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	"github.com/miekg/dns"
	networkv1 "github.com/openshift/api/network/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	fcache "k8s.io/client-go/tools/cache/testing"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/egressstatus"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/inputs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/pkg/sdn/policy"
	"github.com/ovsdn/ovsdn/test/await"
)

const testTimeout = 90 * time.Second

func TestMain(m *testing.M) { await.VerifyTestMain(m) }

// listOnly makes the reflector list objects, since the source does not support streaming lists.
type listOnly struct{ cache.ListerWatcher }

func (listOnly) IsWatchListSemanticsUnSupported() bool { return true }

// cluster has the objects, the DNS server and the switch, which survive a restart of the agent.
type cluster struct {
	bridge                *ovs.Fake
	policies, hostSubnets *fcache.FakeControllerSource
	outside               map[netip.AddrPort]pipeline.OutsideEndpoints
	events                recordedEvents
	limit                 int // of the budget of the node
	export                pipeline.FlowExport
	rulesDir              string

	mu       sync.Mutex
	statuses map[string]egressstatus.Status
	patches  int
	names    map[string][]string // addresses by DNS name; a name without an entry gets SERVFAIL
}

// agent is an agent of the cluster's only node.
type agent struct {
	*Policies
	*cluster
	t  *testing.T
	st *flowstore.Store
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{
		bridge: ovs.NewFake("br0"), policies: fcache.NewFakeControllerSource(), hostSubnets: fcache.NewFakeControllerSource(),
		outside: map[netip.AddrPort]pipeline.OutsideEndpoints{}, names: map[string][]string{}, statuses: map[string]egressstatus.Status{}, limit: maxNodeFlows,
		rulesDir: filepath.Join(t.TempDir(), "rules"),
	}
	t.Cleanup(func() { c.policies.Shutdown(); c.hostSubnets.Shutdown() })
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
		VTEP:            netip.MustParseAddr("172.31.0.11"),
		VXLANPort:       4789,
	}
}

// start starts an agent, which attaches the pods as at its start. It ends with the test or the returned function.
func (c *cluster) start(t *testing.T, pods ...string) (*agent, func()) {
	t.Helper()
	a := &agent{cluster: c, t: t, st: flowstore.New(c.bridge)}
	a.st.Source(inputs.KindVNID, flowstore.Source{Default: config.VNID(100)})
	policies := cache.NewSharedIndexInformer(listOnly{c.policies}, &networkv1.EgressNetworkPolicy{}, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	hostSubnets := cache.NewSharedIndexInformer(listOnly{c.hostSubnets}, &networkv1.HostSubnet{}, 0, cache.Indexers{})
	node := testNode()
	node.FlowExport = c.export
	var err error
	a.Policies, err = New(Options{
		NodeName: "node1", RulesDir: c.rulesDir, Status: c, Events: &c.events,
		Node: node, Policies: policies, HostSubnets: hostSubnets, Store: a.st, Bridge: dumper{c.bridge}, Servers: c.serveDNS(t),
		OutsideEndpoints: func(addr netip.Addr, _ goovs.Protocol, port uint16) pipeline.OutsideEndpoints {
			return c.outside[netip.AddrPortFrom(addr, port)]
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	a.budget.limit = c.limit
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	stop := sync.OnceFunc(func() { cancel(); running.Wait() })
	t.Cleanup(stop)
	running.Go(func() { policies.RunWithContext(ctx) })
	running.Go(func() { hostSubnets.RunWithContext(ctx) })
	if err := a.Prime(ctx); err != nil {
		t.Fatal(err)
	}
	for _, pod := range pods {
		a.attach(pod)
	}
	running.Go(func() { a.Run(ctx) })
	a.AwaitNames(ctx)
	running.Go(func() {
		if err := a.st.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	return a, stop
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

// Get implements Status.
func (c *cluster) Get(_ context.Context, namespace, name string) (*egressstatus.Status, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	status := c.statuses[namespace+"/"+name]
	status.Nodes = maps.Clone(status.Nodes)
	return &status, nil
}

// Patch implements Status.
func (c *cluster) Patch(_ context.Context, namespace, name string, patch egressstatus.Status) (*egressstatus.Status, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.patches++
	status := c.statuses[namespace+"/"+name]
	if status.Nodes == nil {
		status.Nodes = map[string]*egressstatus.Node{}
	}
	for node, of := range patch.Nodes {
		if status.Nodes[node] = of; of == nil {
			delete(status.Nodes, node)
		}
	}
	c.statuses[namespace+"/"+name] = status
	return &status, nil
}

func owner(pod string) pipeline.Owner { return pipeline.Owner{Kind: pipeline.KindPod, Key: pod} }

// attach attaches a pod, named by its namespace and the last byte of its address, such as tenant/5.
func (a *agent) attach(pod string) func(context.Context) error {
	namespace, last, _ := strings.Cut(pod, "/")
	addr := netip.MustParseAddr("10.128.0." + last)
	return a.Attach(a.t.Context(), owner(pod), policy.PodKey{Namespace: namespace, Name: last}, pipeline.Pod{Addrs: []netip.Addr{addr}}, nil)
}

// serveDNS starts the DNS server.
func (c *cluster) serveDNS(t *testing.T) func() ([]string, error) {
	t.Helper()
	conn, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	started := make(chan struct{})
	s := &dns.Server{PacketConn: conn, NotifyStartedFunc: func() { close(started) }, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, query *dns.Msg) {
		c.mu.Lock()
		addrs, known := c.names[strings.TrimSuffix(query.Question[0].Name, ".")]
		c.mu.Unlock()
		m := new(dns.Msg)
		m.SetReply(query)
		if !known {
			m.Rcode = dns.RcodeServerFailure
		}
		for _, a := range addrs {
			rr, err := dns.NewRR(fmt.Sprintf("%s 1 IN A %s", query.Question[0].Name, a))
			if err != nil {
				t.Error(err)
			}
			m.Answer = append(m.Answer, rr)
		}
		_ = w.WriteMsg(m) // the client asks again
	})}
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.ActivateAndServe() }) // ends with Shutdown
	<-started
	t.Cleanup(func() { _ = s.Shutdown(); serving.Wait() })
	return func() ([]string, error) { return []string{conn.LocalAddr().String()}, nil }
}

func (c *cluster) resolve(name string, addrs ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.names[name] = addrs
}

// egressPolicy returns a policy named by namespace/name of rules such as "Allow 192.0.2.0/24" or "Deny example.com".
func egressPolicy(key string, rules ...string) *networkv1.EgressNetworkPolicy {
	o := &networkv1.EgressNetworkPolicy{}
	o.Namespace, o.Name, _ = strings.Cut(key, "/")
	for _, r := range rules {
		action, to, _ := strings.Cut(r, " ")
		rule := networkv1.EgressNetworkPolicyRule{Type: networkv1.EgressNetworkPolicyRuleType(action)}
		if strings.Contains(to, "/") {
			rule.To.CIDRSelector = to
		} else {
			rule.To.DNSName = to
		}
		o.Spec.Egress = append(o.Spec.Egress, rule)
	}
	o.UID = types.UID("uid of " + key)
	o.Generation = int64(crc32.ChecksumIEEE([]byte(strings.Join(rules, ",")))) // differs as the rules
	return o
}

// generationAt returns the policy with a generation that counts its changes, as the API server does.
func generationAt(number int64, o *networkv1.EgressNetworkPolicy) *networkv1.EgressNetworkPolicy {
	o.Generation = number
	return o
}

// flows returns the flows of firewalls on the switch, without the table and the protocol, sorted.
func (c *cluster) flows() []string {
	var all []string
	for _, f := range c.bridge.Flows() {
		if _, rest, found := strings.Cut(f, "table=100,"); found {
			match, actions, _ := strings.Cut(rest, ",cookie=")
			_, actions, _ = strings.Cut(actions, ",actions=")
			all = append(all, strings.ReplaceAll(match, "ip,", "")+",actions="+strings.ReplaceAll(actions, "goto_table:101", "pass"))
		}
	}
	slices.Sort(all)
	return all
}

// want waits for the flows.
func (a *agent) want(flows ...string) {
	a.t.Helper()
	slices.Sort(flows)
	await.OK(a.t, testTimeout, func(context.Context) error {
		if got := a.flows(); !slices.Equal(got, flows) {
			return fmt.Errorf("got flows\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(flows, "\n"))
		}
		return nil
	})
}
