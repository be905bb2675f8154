package services

import (
	"bytes"
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
	networkv1 "github.com/openshift/api/network/v1"
	networklisters "github.com/openshift/client-go/network/listers/network/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	fcache "k8s.io/client-go/tools/cache/testing"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/store"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/vnids"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
	"github.com/ovsdn/ovsdn/test/await"
)

const patience = 30 * time.Second

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
				if err := s.slices.Add(slim(s.node, of)); err != nil {
					t.Fatal(err)
				}
			}
			got, _ := s.learn("ns/svc", service())
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

// TestSlicesSelector: the agent evaluates every slice that a version of kube-proxy reads.
func TestSlicesSelector(t *testing.T) {
	selector, err := labels.Parse(SlicesSelector)
	if err != nil {
		t.Fatal(err)
	}
	for label, want := range map[string]bool{"": true, "service.kubernetes.io/service-proxy-name": true, corev1.IsHeadlessService: false} {
		if got := selector.Matches(labels.Set{discoveryv1.LabelServiceName: "svc", label: ""}); got != want {
			t.Errorf("a slice with label %q is selected: got %v, want %v", label, got, want)
		}
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

// TestSlicesAreSlim: of slices in the pod network nothing is stored but their service.
func TestSlicesAreSlim(t *testing.T) {
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
		all = append(all, slim(testNode(), slice(fmt.Sprintf("svc-%d", i), port("web", corev1.ProtocolTCP, 8080), addrs...)))
	}
	each := (memory() - before) / count
	t.Logf("%d bytes for a slice of %d endpoints", each, len(addrs))
	if each > 1500 {
		t.Errorf("a slice takes %d bytes, want at most 1500", each)
	}
	runtime.KeepAlive(all)
}

// TestEndpointsChange: the flows of a service follow its endpoints, and connections to it are evaluated again when it has other outside endpoints.
func TestEndpointsChange(t *testing.T) { synctest.Test(t, testEndpointsChange) }

func testEndpointsChange(t *testing.T) {
	bridge := ovs.NewFake("br0")
	if err := bridge.EnsureBridge(t.Context(), ovs.Bridge{Name: "br0", DatapathType: "netdev"}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(func() { cancel(); running.Wait() })
	st := store.New(bridge)
	svcSource, sliceSource, netSource := fcache.NewFakeControllerSource(), fcache.NewFakeControllerSource(), fcache.NewFakeControllerSource()
	for _, source := range []*fcache.FakeControllerSource{svcSource, sliceSource, netSource} {
		t.Cleanup(source.Shutdown)
	}
	netSource.Add(&networkv1.NetNamespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}, NetName: "ns", NetID: 10})
	svcs := cache.NewSharedIndexInformer(listOnly{svcSource}, &corev1.Service{}, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	informer := cache.NewSharedIndexInformer(listOnly{sliceSource}, &discoveryv1.EndpointSlice{}, 0, cache.Indexers{})
	nets := cache.NewSharedIndexInformer(listOnly{netSource}, &networkv1.NetNamespace{}, 0, cache.Indexers{})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(Prepare(testNode(), informer))
	byVNID, err := vnids.New(vnids.Options{Node: testNode(), Store: st, Informer: nets, Lister: networklisters.NewNetNamespaceLister(nets.GetIndexer())})
	must(err)
	s, err := New(Options{Node: testNode(), Lister: corelisters.NewServiceLister(svcs.GetIndexer()), Informer: svcs, Slices: informer, VNIDs: byVNID})
	must(err)
	changed := make(chan struct{}, 100)
	s.Follow(func(*store.Commit) { changed <- struct{}{} })
	for _, i := range []cache.SharedIndexInformer{svcs, informer, nets} {
		running.Go(func() { i.RunWithContext(ctx) })
		if !cache.WaitForCacheSync(ctx.Done(), i.HasSynced) {
			t.Fatal("the cache did not sync")
		}
	}
	must(byVNID.Prime(ctx))
	must(s.Prime())
	running.Go(func() { s.Run(ctx) })
	running.Go(func() {
		if err := st.Run(ctx); err != nil {
			t.Error(err)
		}
	})

	expect := func(step, text string, want int, calls int) {
		t.Helper()
		await.OK(t, patience, func(context.Context) error {
			all := strings.Join(bridge.Flows(), "\n")
			if got := strings.Count(all, text); got != want {
				return fmt.Errorf("%s: %d flows with %q, want %d:\n%s", step, got, text, want, all)
			}
			return nil
		})
		for range calls {
			select {
			case <-changed:
			case <-time.After(patience):
				t.Fatalf("%s: the change is not reported", step)
			}
		}
		if len(changed) > 0 {
			t.Errorf("%s: a change is reported without need", step)
		}
	}
	web := port("web", corev1.ProtocolTCP, 8080)
	svcSource.Add(service())
	expect("no slice", "priority=210,tcp,reg4=0x1/0x1,nw_dst=172.30.0.10,tp_dst=80", 1, 0)
	sliceSource.Add(slice("a", web, "10.128.0.5"))
	expect("pods", "priority=210", 0, 0)
	sliceSource.Modify(slice("a", web, "10.128.0.5", "192.0.2.7"))
	expect("an outside endpoint", "set_field:192.0.2.7->ip_dst", 1, 1)
	if got := s.Outside(netip.MustParseAddr("172.30.0.10"), goovs.ProtocolTCPv4, 80); len(got.Addrs) != 1 {
		t.Errorf("got %v, want one endpoint", got)
	}
	sliceSource.Modify(slice("a", web, "10.128.0.6", "192.0.2.7"))
	sliceSource.Add(slice("b", web, "192.0.2.8"))
	expect("another one", "set_field:192.0.2.8->ip_dst", 1, 1)
	sliceSource.Delete(slice("a", web))
	expect("one slice less", "set_field:192.0.2.7->ip_dst", 1, 0)
	<-time.After(retention)
	expect("one slice less, and the retention is over", "set_field:192.0.2.7->ip_dst", 0, 1)
	svcSource.Delete(service())
	expect("no service", "table=60", 0, 0)
	<-time.After(retention)
	synctest.Wait()
	if got := s.Outside(netip.MustParseAddr("172.30.0.10"), goovs.ProtocolTCPv4, 80); len(got.Addrs) != 0 || got.Closed {
		t.Errorf("got %v, want none", got)
	}
}

// TestSuccessorOfService: when a service is deleted, what is stored of the one that has its address now stays.
func TestSuccessorOfService(t *testing.T) {
	s := newServices() // without slices: ports are closed
	for step, serve := range []func(){
		func() { s.learn("ns/old", service()) }, func() { s.learn("ns/new", service()) }, func() { s.learn("ns/old", nil) },
	} {
		serve()
		if got := s.Outside(netip.MustParseAddr("172.30.0.10"), goovs.ProtocolTCPv4, 80); !got.Closed {
			t.Errorf("step %d: got %v, want a closed port", step, got)
		}
	}
	s.learn("ns/new", nil)
	if got := s.Outside(netip.MustParseAddr("172.30.0.10"), goovs.ProtocolTCPv4, 80); got.Closed {
		t.Errorf("without the services: got %v, want none", got)
	}
}

// TestRemovedEndpoint: packets are evaluated by an endpoint until the proxy knows of its removal, whatever it was that removed it.
func TestRemovedEndpoint(t *testing.T) {
	web, dns := port("web", corev1.ProtocolTCP, 8080), port("dns", corev1.ProtocolUDP, 5353)
	many := make([]string, pipeline.MaxOutsideEndpoints)
	for i := range many {
		many[i] = fmt.Sprintf("192.0.%d.%d", 3+i/256, i%256)
	}
	without := func(change func(*corev1.Service)) *corev1.Service {
		svc := service()
		change(svc)
		return svc
	}
	tooMany := append([]string{"192.0.2.7"}, many...)
	for name, tc := range map[string]struct {
		before                    []string        // endpoints
		now                       []string        // nil: no slice
		svc                       *corev1.Service // nil: deleted
		web, nodePort             string          // an endpoint by which packets are evaluated; "": none
		webClosed, nodePortClosed bool            //
		after                     [2]bool         // whether they are evaluated after the retention
	}{
		"an endpoint":             {before: []string{"192.0.2.7"}, now: []string{"10.128.0.5"}, svc: service(), web: "192.0.2.7:8080", nodePort: "192.0.2.7:5353"},
		"one of two":              {before: []string{"192.0.2.7", "192.0.2.8"}, now: []string{"192.0.2.8"}, svc: service(), web: "192.0.2.7:8080", nodePort: "192.0.2.7:5353", after: [2]bool{true, true}},
		"all slices":              {before: []string{"192.0.2.7"}, svc: service(), webClosed: true, nodePortClosed: true, after: [2]bool{true, true}},
		"too many":                {before: tooMany, now: []string{"10.128.0.5"}, svc: service(), webClosed: true, nodePortClosed: true},
		"too many with the next":  {before: []string{"192.0.2.7"}, now: many, svc: service(), webClosed: true, nodePortClosed: true, after: [2]bool{true, true}},
		"the service":             {before: []string{"192.0.2.7"}, now: []string{"192.0.2.7"}, web: "192.0.2.7:8080", nodePort: "192.0.2.7:5353"},
		"the node port":           {before: []string{"192.0.2.7"}, now: []string{"192.0.2.7"}, svc: without(func(s *corev1.Service) { s.Spec.Ports[1].NodePort = 0 }), web: "192.0.2.7:8080", nodePort: "192.0.2.7:5353", after: [2]bool{true, false}},
		"a service of that name":  {before: []string{"192.0.2.7"}, now: []string{"10.128.0.5"}, svc: without(func(s *corev1.Service) { s.UID = "new" }), web: "192.0.2.7:8080", nodePort: "192.0.2.7:5353"},
		"all, and there was none": {before: []string{"10.128.0.5"}, now: []string{"10.128.0.6"}, svc: service()},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newServices()
				set := func(addrs []string) {
					t.Helper()
					for name, p := range map[string]discoveryv1.EndpointPort{"a": web, "b": dns} {
						do := s.slices.Update
						if addrs == nil {
							do = s.slices.Delete
						}
						if err := do(slim(s.node, slice(name, p, addrs...))); err != nil {
							t.Fatal(err)
						}
					}
				}
				check := func(what string, addr netip.Addr, protocol goovs.Protocol, port uint16, want string, closed bool) {
					t.Helper()
					got := s.Outside(addr, protocol, port)
					has := want == "" || slices.Contains(got.Addrs, netip.MustParseAddrPort(want))
					if !has || got.Closed != closed || want == "" && !closed && got.Any() {
						t.Errorf("%s: got %v, want %q, closed %v", what, got, want, closed)
					}
				}
				set(tc.before)
				s.learn("ns/svc", service())
				set(tc.now)
				for range 2 { // other changes in that time
					out, _ := s.learn("ns/svc", tc.svc)
					check("web", netip.MustParseAddr("172.30.0.10"), goovs.ProtocolTCPv4, 80, tc.web, tc.webClosed)
					check("node port", netip.Addr{}, goovs.ProtocolUDPv4, 30053, tc.nodePort, tc.nodePortClosed)
					if has := len(out.NodePorts) > 0 && out.NodePorts[0].Outside.Any(); has != (tc.nodePort != "" || tc.nodePortClosed) {
						t.Errorf("the result has a node port that is evaluated: %v", out)
					}
					<-time.After(retention / 2)
				}
				out, _ := s.learn("ns/svc", tc.svc)
				now := [2]bool{
					s.Outside(netip.MustParseAddr("172.30.0.10"), goovs.ProtocolTCPv4, 80).Any(), s.Outside(netip.Addr{}, goovs.ProtocolUDPv4, 30053).Any(),
				}
				if now != tc.after {
					t.Errorf("after the retention: evaluated %v, want %v", now, tc.after)
				}
				if tc.svc == nil && (len(s.endpoints.byFrontend) > 0 || len(s.endpoints.frontends) > 0 || len(out.NodePorts) > 0) {
					t.Errorf("stored of a deleted service: %v, %v", s.endpoints, out)
				}
			})
		})
	}
}

// TestExcessIsLogged: a service with too many endpoints is logged once, and again after it had fewer.
func TestExcessIsLogged(t *testing.T) {
	var log bytes.Buffer
	klog.SetLogger(textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&log))))
	t.Cleanup(klog.ClearLogger)
	s := newServices()
	for step, want := range []int{0, 1, 1, 1, 2} {
		count := pipeline.MaxOutsideEndpoints
		if step%3 > 0 {
			count++
		}
		addrs := make([]string, count)
		for i := range addrs {
			addrs[i] = fmt.Sprintf("192.0.%d.%d", 2+i/256, i%256)
		}
		if err := s.slices.Update(slim(s.node, slice("a", port("web", corev1.ProtocolTCP, 8080), addrs...))); err != nil {
			t.Fatal(err)
		}
		s.learn("ns/svc", service())
		if got := strings.Count(log.String(), `service="ns/svc" endpointsAtLeast=257 limit=256`); got != want {
			t.Errorf("step %d: logged %d times, want %d: %s", step, got, want, log.String())
		}
	}
}

// TestRemovedEndpoint_ofAnotherService: a service that gets the node port of a deleted one is evaluated by the endpoints of both.
func TestRemovedEndpoint_ofAnotherService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServices()
		if err := s.slices.Add(slim(s.node, slice("a", port("dns", corev1.ProtocolUDP, 5353), "192.0.2.7"))); err != nil {
			t.Fatal(err)
		}
		s.learn("ns/svc", service())
		s.learn("ns/svc", nil)
		next := service()
		next.Name = "next"
		of := slice("b", port("dns", corev1.ProtocolUDP, 5353), "192.0.2.8")
		of.Labels[discoveryv1.LabelServiceName] = "next"
		if err := s.slices.Add(slim(s.node, of)); err != nil {
			t.Fatal(err)
		}
		got, _ := s.learn("ns/next", next)
		if n := len(got.NodePorts[0].Outside.Addrs); n != 2 {
			t.Errorf("evaluated by %v, want two endpoints", got.NodePorts[0].Outside)
		}
		if old, _ := s.learn("ns/svc", nil); len(old.NodePorts) > 0 {
			t.Errorf("the deleted service has %v, want none", old.NodePorts)
		}
		<-time.After(retention)
		got, _ = s.learn("ns/next", next)
		if n := len(got.NodePorts[0].Outside.Addrs); n != 1 {
			t.Errorf("after the retention: evaluated by %v, want one endpoint", got.NodePorts[0].Outside)
		}
	})
}

// listOnly tells the reflector that the source can't stream its lists.
type listOnly struct{ cache.ListerWatcher }

func (listOnly) IsWatchListSemanticsUnSupported() bool { return true }
