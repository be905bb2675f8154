package vnids

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	networkv1 "github.com/openshift/api/network/v1"
	"github.com/openshift/client-go/network/clientset/versioned/fake"
	networklisters "github.com/openshift/client-go/network/listers/network/v1"
	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/store"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/fakeapi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 20 * time.Second

// fixture is a node of mode multitenant with a fake switch and API.
type fixture struct {
	*VNIDs
	t      *testing.T
	bridge *ovs.Fake
	client *fake.Clientset
	gets   chan string // names that were asked for
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
	st := store.New(f.bridge)
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

// pod has one flow, in whose actions the VNID can be seen.
func pod(n int) Dependent {
	return Dependent{OFPort: n, Compile: func(vnid config.VNID) pipeline.State {
		return pipeline.State{Flows: []*ovs.Flow{{
			Table: 20, Priority: 100, Protocol: goovs.ProtocolIPv4, InPort: n,
			Actions: []ovs.Action{goovs.Load(fmt.Sprintf("%#x", uint32(vnid)), "NXM_NX_REG0[]"), ovs.GotoTable(27)},
		}}}
	}}
}

func (f *fixture) set(namespace string, n int) {
	f.t.Helper()
	f.must(f.Set(namespace, owner(n), pod(n)))
}

func (f *fixture) must(c *store.Commit) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), patience)
	defer cancel()
	if err := c.Wait(ctx); err != nil {
		f.t.Fatal(err)
	}
}

// loads returns the VNIDs of ports, "1:0x20 2:0x20", as the switch has them.
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

// eventually looks until the switch has what is wanted.
func (f *fixture) eventually(look func() error) {
	f.t.Helper()
	await.OK(f.t, patience, func(context.Context) error { return look() })
}

func (f *fixture) wantLoads(want string) {
	f.t.Helper()
	f.eventually(func() error {
		if got := loads(f.bridge.Flows()); got != want {
			return fmt.Errorf("VNIDs by port are %q, want %q", got, want)
		}
		return nil
	})
}
