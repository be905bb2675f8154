package vnids

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	networkv1 "github.com/openshift/api/network/v1"
	"github.com/openshift/client-go/network/clientset/versioned/fake"
	networklisters "github.com/openshift/client-go/network/listers/network/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/inputs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/fakeapi"
)

func TestMain(m *testing.M) { await.VerifyTestMain(m) }

const timeout = 90 * time.Second

// fixture is a node of mode multitenant with a fake switch and API.
type fixture struct {
	*VNIDs
	t      *testing.T
	bridge *ovs.Fake
	client *fake.Clientset
	gets   chan string // names of requested NetNamespaces

	mutex sync.Mutex
	pods  map[string][]int // the ports of each namespace's pods
}

func start(t *testing.T, mode config.Mode, objects ...*networkv1.NetNamespace) *fixture {
	t.Helper()
	f := &fixture{t: t, bridge: ovs.NewFake("br0"), client: fake.NewSimpleClientset(), gets: make(chan string, 100)}
	if err := f.bridge.EnsureBridge(t.Context(), ovs.Bridge{Name: "br0", DatapathType: "netdev"}); err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		f.create(o)
	}
	informer := fakeapi.NewInformer(f.client.NetworkV1().NetNamespaces(), &networkv1.NetNamespace{})
	st := flowstore.New(f.bridge)
	var err error
	f.VNIDs, err = New(Options{
		Node:     pipeline.Node{Mode: mode},
		Lister:   networklisters.NewNetNamespaceLister(informer.GetIndexer()),
		Informer: informer,
		Store:    st,
		Get: func(ctx context.Context, name string) (*networkv1.NetNamespace, error) {
			f.gets <- name
			return f.client.NetworkV1().NetNamespaces().Get(ctx, name, metav1.GetOptions{})
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	fakeapi.Run(t, informer, f, st)
	return f
}

func netNamespace(name string, vnid uint32) *networkv1.NetNamespace {
	return &networkv1.NetNamespace{ObjectMeta: metav1.ObjectMeta{Name: name}, NetName: name, NetID: vnid}
}

func withMulticast(o *networkv1.NetNamespace) *networkv1.NetNamespace {
	o.Annotations = map[string]string{networkv1.MulticastEnabledAnnotation: "true"}
	return o
}

func (f *fixture) create(o *networkv1.NetNamespace) {
	f.t.Helper()
	if _, err := f.client.NetworkV1().NetNamespaces().Create(f.t.Context(), o, metav1.CreateOptions{}); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) update(o *networkv1.NetNamespace) {
	f.t.Helper()
	if _, err := f.client.NetworkV1().NetNamespaces().Update(f.t.Context(), o, metav1.UpdateOptions{}); err != nil {
		f.t.Fatal(err)
	}
}

func owner(n int) pipeline.Owner {
	return pipeline.Owner{Kind: pipeline.KindPod, Key: fmt.Sprint(n)}
}

// flowsOf returns the only flow of a pod, which loads the VNID.
func flowsOf(n int, vnid config.VNID) pipeline.State {
	return pipeline.State{Flows: []*ovs.Flow{{
		Table: 20, Priority: 100, Protocol: goovs.ProtocolIPv4, InPort: n,
		Actions: []ovs.Action{goovs.Load(fmt.Sprintf("%#x", uint32(vnid)), "NXM_NX_REG0[]"), ovs.GotoTable(27)},
	}}}
}

// set sets a pod's flows as package pods does, and waits for them, unless the VNID of the namespace is unknown.
func (f *fixture) set(namespace string, n int) {
	f.t.Helper()
	vnid := inputs.VNID(namespace)
	f.mutex.Lock()
	if f.pods == nil {
		f.pods = map[string][]int{}
	}
	f.pods[namespace] = append(slices.Clone(f.pods[namespace]), n)
	commit := f.store.Update(flowstore.Update{
		Publish: []flowstore.Published{{Input: inputs.Ports(namespace, ""), Value: f.pods[namespace]}},
		Changes: []flowstore.Change{{Owner: owner(n), Reads: []flowstore.Input{vnid}, Compile: func(v *flowstore.Values) pipeline.State {
			return flowsOf(n, flowstore.Read[config.VNID](v, vnid))
		}}},
	})[0]
	f.mutex.Unlock()
	if err := f.wait(commit); err != nil && !errors.As(err, new(*flowstore.MissingInputError)) {
		f.t.Fatal(err)
	}
}

// remove deletes a pod.
func (f *fixture) remove(namespace string, n int) {
	f.t.Helper()
	f.mutex.Lock()
	f.pods[namespace] = slices.DeleteFunc(slices.Clone(f.pods[namespace]), func(port int) bool { return port == n })
	commit := f.store.Update(flowstore.Update{
		Publish: []flowstore.Published{{Input: inputs.Ports(namespace, ""), Value: f.pods[namespace]}},
		Changes: []flowstore.Change{{Owner: owner(n)}},
	})[0]
	f.mutex.Unlock()
	f.must(commit)
}

// require waits for the VNID of the namespace, as a pod's ADD does first.
func (f *fixture) require(ctx context.Context, namespace string) error {
	return f.store.Require(ctx, inputs.VNID(namespace))
}

func (f *fixture) of(namespace string) (config.VNID, bool) {
	return flowstore.Get[config.VNID](f.store, inputs.VNID(namespace))
}

func (f *fixture) wait(c *flowstore.Commit) error {
	ctx, cancel := context.WithTimeout(f.t.Context(), timeout)
	defer cancel()
	return c.Wait(ctx)
}

func (f *fixture) must(c *flowstore.Commit) {
	f.t.Helper()
	if err := f.wait(c); err != nil {
		f.t.Fatal(err)
	}
}

// loads returns the VNIDs that the flows load, by port: "1:0x20 2:0x20".
func loads(flows []string) string {
	var out []string
	for _, text := range flows {
		var port int
		var vnid uint32
		_, in, ok := strings.Cut(text, "in_port=")
		if !ok {
			continue
		}
		_, load, _ := strings.Cut(text, "load:")
		if _, err := fmt.Sscanf(in, "%d", &port); err != nil {
			continue
		}
		if _, err := fmt.Sscanf(load, "0x%x", &vnid); err != nil {
			vnid = 0
		}
		out = append(out, fmt.Sprintf("%d:%#x", port, vnid))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// eventually repeats the check until it succeeds.
func (f *fixture) eventually(check func() error) {
	f.t.Helper()
	await.OK(f.t, timeout, func(context.Context) error { return check() })
}

func (f *fixture) wantLoads(want string) {
	f.t.Helper()
	f.eventually(func() error {
		if got := loads(f.bridge.Flows()); got != want {
			return fmt.Errorf("VNIDs by port: got %q, want %q", got, want)
		}
		return nil
	})
}
