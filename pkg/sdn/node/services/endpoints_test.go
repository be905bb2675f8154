package services

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	fcache "k8s.io/client-go/tools/cache/testing"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/inputs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
	"github.com/ovsdn/ovsdn/test/await"
)

const timeout = 90 * time.Second

func testNode() pipeline.Node {
	return pipeline.Node{
		Mode:            config.ModeNetworkPolicy,
		ClusterNetworks: []netip.Prefix{netip.MustParsePrefix("10.128.0.0/14")},
		ServiceNetwork:  netip.MustParsePrefix("172.30.0.0/16"),
		Subnets:         []netip.Prefix{netip.MustParsePrefix("10.128.0.0/23")},
	}
}

// slice returns a slice of service ns/svc with one port.
func slice(name string, port discoveryv1.EndpointPort, addrs ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: "svc", "other": "label"}, Annotations: map[string]string{"a": "b"},
		},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{port},
	}
	for _, a := range addrs {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{a}})
	}
	return s
}

func port(name string, protocol corev1.Protocol, number int32) discoveryv1.EndpointPort {
	return discoveryv1.EndpointPort{Name: &name, Protocol: &protocol, Port: &number}
}

func service() *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "svc"}, Spec: corev1.ServiceSpec{
		ClusterIPs: []string{"172.30.0.10"},
		Ports: []corev1.ServicePort{
			{Name: "web", Protocol: corev1.ProtocolTCP, Port: 80}, {Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53, NodePort: 30053},
		},
	}}
}

// newServices returns Services with an empty cache of EndpointSlices, that do not run.
func newServices() *Services {
	return &Services{
		node: testNode(), endpoints: newEndpoints(), loop: reconcile.New("services", func(context.Context, string) error { return nil }),
		slices: cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{indexService: func(obj any) ([]string, error) { return serviceOf(obj), nil }}),
	}
}

func TestAddOutside(t *testing.T) {
	web, dns := port("web", corev1.ProtocolTCP, 8080), port("dns", corev1.ProtocolUDP, 5353)
	tcp := corev1.ProtocolTCP
	many := make([]string, pipeline.MaxOutsideEndpoints+1)
	for i := range many {
		many[i] = fmt.Sprintf("192.0.%d.%d", 2+i/256, i%256)
	}
	ipv6 := slice("v6", web, "2001:db8::1")
	ipv6.AddressType = discoveryv1.AddressTypeIPv6
	type outside = pipeline.OutsideEndpoints
	closed := outside{Closed: true}
	at := func(addrs ...string) (o outside) {
		for _, a := range addrs {
			o.Addrs = append(o.Addrs, netip.MustParseAddrPort(a))
		}
		return o
	}
	for name, tc := range map[string]struct {
		slices   []*discoveryv1.EndpointSlice
		web, dns outside
	}{
		"no slice":                       {nil, closed, closed},
		"only a slice of IPv6":           {[]*discoveryv1.EndpointSlice{ipv6}, closed, closed},
		"no endpoints":                   {[]*discoveryv1.EndpointSlice{slice("a", web)}, outside{}, outside{}},
		"pods":                           {[]*discoveryv1.EndpointSlice{slice("a", web, "10.128.0.5", "10.129.7.8")}, outside{}, outside{}},
		"tun0 here, tun0 there":          {[]*discoveryv1.EndpointSlice{slice("a", web, "10.128.0.1", "10.129.0.1")}, at("10.128.0.1:8080"), outside{}},
		"a node":                         {[]*discoveryv1.EndpointSlice{slice("a", web, "172.31.0.11")}, at("172.31.0.11:8080"), outside{}},
		"a service":                      {[]*discoveryv1.EndpointSlice{slice("a", web, "172.30.0.1")}, at("172.30.0.1:8080"), outside{}},
		"two slices, some of both again": {[]*discoveryv1.EndpointSlice{slice("a", web, "192.0.2.2", "192.0.2.1"), slice("b", web, "192.0.2.1"), slice("c", dns, "192.0.2.3")}, at("192.0.2.1:8080", "192.0.2.2:8080"), at("192.0.2.3:5353")},
		"another port":                   {[]*discoveryv1.EndpointSlice{slice("a", port("x", tcp, 1), "192.0.2.1")}, outside{}, outside{}},
		"another protocol":               {[]*discoveryv1.EndpointSlice{slice("a", port("web", corev1.ProtocolUDP, 1), "192.0.2.1")}, outside{}, outside{}},
		"an address of another notation": {[]*discoveryv1.EndpointSlice{slice("a", web, "192.0.2.007")}, closed, outside{}},
		"a port without a number":        {[]*discoveryv1.EndpointSlice{slice("a", discoveryv1.EndpointPort{Name: web.Name, Protocol: &tcp}, "192.0.2.7")}, closed, outside{}},
		"the most":                       {[]*discoveryv1.EndpointSlice{slice("a", web, many[1:]...)}, at(ports(many[1:])...), outside{}},
		"one many times, then another":   {[]*discoveryv1.EndpointSlice{slice("a", web, append(slices.Repeat([]string{"192.0.2.1"}, len(many)), "192.0.2.9")...)}, at("192.0.2.1:8080", "192.0.2.9:8080"), outside{}},
		"more than the most":             {[]*discoveryv1.EndpointSlice{slice("a", web, many...)}, closed, outside{}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServices()
			for _, of := range tc.slices {
				if err := s.slices.Add(transformSlice(s.node, of)); err != nil {
					t.Fatal(err)
				}
			}
			got, _ := s.updateEndpoints(t.Context(), "ns/svc", service())
			if diff := cmp.Diff(tc.dns, got.NodePorts[0].Outside, cmpopts.EquateComparable(netip.AddrPort{}), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("node port (-want +got):\n%s", diff)
			}
			for i, want := range []outside{tc.web, tc.dns} {
				if diff := cmp.Diff(want, got.Ports[i].Outside, cmpopts.EquateComparable(netip.AddrPort{}), cmpopts.EquateEmpty()); diff != "" {
					t.Errorf("port %d (-want +got):\n%s", got.Ports[i].Port, diff)
				}
			}
		})
	}
}

func ports(addrs []string) []string {
	var out []string
	for _, a := range addrs {
		out = append(out, a+":8080")
	}
	// Sorted as addresses.
	for i := range out {
		for j := i; j > 0 && netip.MustParseAddrPort(out[j]).Compare(netip.MustParseAddrPort(out[j-1])) < 0; j-- {
			out[j], out[j-1] = out[j-1], out[j]
		}
	}
	return out
}

// TestTransformSlice_memory checks that the cache retains only the service's name of slices in the pod network.
func TestTransformSlice_memory(t *testing.T) {
	const count = 10_000
	addrs := make([]string, 100)
	for i := range addrs {
		addrs[i] = fmt.Sprintf("10.129.0.%d", i)
	}
	memory := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	all := make([]any, 0, count)
	before := memory()
	for i := range count {
		all = append(all, transformSlice(testNode(), slice(fmt.Sprintf("svc-%d", i), port("web", corev1.ProtocolTCP, 8080), addrs...)))
	}
	each := (memory() - before) / count
	t.Logf("%d bytes for a slice of %d endpoints", each, len(addrs))
	if each > 1500 {
		t.Errorf("a slice takes %d bytes, want at most 1500", each)
	}
	runtime.KeepAlive(all)
}

// fixture runs Services with a fake switch and fake sources of services and slices.
type fixture struct {
	*testing.T
	*Services
	bridge           *ovs.Fake
	services, slices *fcache.FakeControllerSource
	changed          chan struct{} // a value for each evaluation of connections, except the first
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{
		T: t, bridge: ovs.NewFake("br0"), services: fcache.NewFakeControllerSource(), slices: fcache.NewFakeControllerSource(),
		changed: make(chan struct{}, 100),
	}
	f.noError(f.bridge.EnsureBridge(t.Context(), ovs.Bridge{Name: "br0", DatapathType: "netdev"}))
	for _, source := range []*fcache.FakeControllerSource{f.services, f.slices} {
		t.Cleanup(source.Shutdown)
	}
	svcs := cache.NewSharedIndexInformer(listOnly{f.services}, &corev1.Service{}, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	informer := cache.NewSharedIndexInformer(listOnly{f.slices}, &discoveryv1.EndpointSlice{}, 0, cache.Indexers{})
	f.noError(Prepare(testNode(), informer))
	st := flowstore.New(f.bridge)
	st.Update(flowstore.Update{Publish: []flowstore.Published{{Input: inputs.VNID("ns"), Value: config.VNID(10)}}})
	var err error
	f.Services, err = New(Options{Node: testNode(), Lister: corelisters.NewServiceLister(svcs.GetIndexer()), Informer: svcs, Slices: informer, Store: st})
	f.noError(err)
	st.EvaluateConnections(pipeline.Zones(), func(restarted bool) func(ovs.Connection) bool {
		if !restarted {
			f.changed <- struct{}{}
		}
		return nil
	})

	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(func() { cancel(); running.Wait() })
	for _, i := range []cache.SharedIndexInformer{svcs, informer} {
		running.Go(func() { i.RunWithContext(ctx) })
		if !cache.WaitForCacheSync(ctx.Done(), i.HasSynced) {
			t.Fatal("the cache did not sync")
		}
	}
	f.noError(f.Prime(t.Context()))
	running.Go(func() { f.Services.Run(ctx) })
	running.Go(func() {
		if err := st.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	return f
}

func (f *fixture) noError(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

// expect waits until that many flows contain the text, and for that many evaluations of connections.
func (f *fixture) expect(step, text string, want int, calls int) {
	f.Helper()
	await.OK(f, timeout, func(context.Context) error {
		all := strings.Join(f.bridge.Flows(), "\n")
		if got := strings.Count(all, text); got != want {
			return fmt.Errorf("%s: flows with %q: got %d, want %d:\n%s", step, text, got, want, all)
		}
		return nil
	})
	for range calls {
		select {
		case <-f.changed:
		case <-time.After(timeout):
			f.Fatalf("%s: no evaluation of connections, want %d", step, calls)
		}
	}
	if len(f.changed) > 0 {
		f.Errorf("%s: more than %d evaluations of connections", step, calls)
	}
}

// TestEndpointsChange checks that flows are recompiled when endpoints change, and that changes of outside endpoints are reported.
func TestEndpointsChange(t *testing.T) { synctest.Test(t, testEndpointsChange) }

func testEndpointsChange(t *testing.T) {
	f := newFixture(t)
	web := port("web", corev1.ProtocolTCP, 8080)
	f.services.Add(service())
	f.expect("no slice", "priority=210,tcp,reg4=0x1/0x1,nw_dst=172.30.0.10,tp_dst=80", 1, 0)
	f.slices.Add(slice("a", web, "10.128.0.5"))
	f.expect("pods", "priority=210", 0, 0)
	f.slices.Modify(slice("a", web, "10.128.0.5", "192.0.2.7"))
	f.expect("an outside endpoint", "set_field:192.0.2.7->ip_dst", 1, 1)
	if got := f.Outside(netip.MustParseAddr("172.30.0.10"), goovs.ProtocolTCPv4, 80); len(got.Addrs) != 1 {
		t.Errorf("got %v, want one endpoint", got)
	}
	f.slices.Modify(slice("a", web, "10.128.0.6", "192.0.2.7"))
	f.slices.Add(slice("b", web, "192.0.2.8"))
	f.expect("another outside endpoint", "set_field:192.0.2.8->ip_dst", 1, 1)
	f.slices.Delete(slice("a", web))
	f.expect("one slice less", "set_field:192.0.2.7->ip_dst", 1, 0)
	<-time.After(retention)
	f.expect("one slice less, after the retention", "set_field:192.0.2.7->ip_dst", 0, 1)
	f.services.Delete(service())
	f.expect("no service", "table=60", 0, 0)
	<-time.After(retention)
	synctest.Wait()
	if got := f.Outside(netip.MustParseAddr("172.30.0.10"), goovs.ProtocolTCPv4, 80); len(got.Addrs) != 0 || got.Closed {
		t.Errorf("got %v, want none", got)
	}
}

// listOnly disables the streaming of lists, which the fake source does not implement.
type listOnly struct{ cache.ListerWatcher }

func (listOnly) IsWatchListSemanticsUnSupported() bool { return true }
