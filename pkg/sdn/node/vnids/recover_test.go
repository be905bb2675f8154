package vnids

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	networkv1 "github.com/openshift/api/network/v1"
	"github.com/openshift/client-go/network/clientset/versioned/fake"
	networklisters "github.com/openshift/client-go/network/listers/network/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/fakeapi"
	"github.com/ovsdn/ovsdn/test/ovstest"
	"github.com/ovsdn/ovsdn/test/tier"
)

func withRecord(o *networkv1.NetNamespace, assigned string) *networkv1.NetNamespace {
	metav1.SetMetaDataAnnotation(&o.ObjectMeta, config.AssignedVNIDAnnotation, assigned)
	return o
}

// The assigned VNID remains active, for new pods too, whether the netid is invalid when the agent starts or becomes so later.
func TestInvalidNetID_retainsAssignedVNID(t *testing.T) {
	tier.Parallel(t)
	for name, invalid := range map[string]*networkv1.NetNamespace{
		"reserved":   withRecord(netNamespace("a", 5), "32"),
		"too large":  withRecord(netNamespace("a", 1<<24), "32"),
		"other name": withRecord(&networkv1.NetNamespace{ObjectMeta: metav1.ObjectMeta{Name: "a"}, NetName: "b", NetID: 0x30}, "32"),
	} {
		t.Run(name+", then a restart", func(t *testing.T) {
			f := start(t, config.ModeMultitenant, invalid)
			f.set("a", 1)
			if err := f.require(t.Context(), "a"); err != nil {
				t.Errorf("new pod: got %v", err)
			}
			f.wantLoads("1:0x20")
		})
		t.Run(name+", running", func(t *testing.T) {
			f := start(t, config.ModeMultitenant, withRecord(netNamespace("a", 0x20), "32"), netNamespace("b", 0x30))
			f.set("a", 1)
			f.update(invalid)
			f.update(netNamespace("b", 0x40)) // handled later
			f.set("b", 2)
			f.set("a", 3)
			f.wantLoads("1:0x20 2:0x40 3:0x20")
		})
		t.Run(name+", new to the agent", func(t *testing.T) {
			f := start(t, config.ModeMultitenant)
			f.get = func(context.Context, string) (*networkv1.NetNamespace, error) { return invalid, nil }
			if err := f.require(t.Context(), "a"); err != nil {
				t.Errorf("got %v", err)
			}
			f.set("a", 1)
			f.wantLoads("1:0x20")
		})
	}
}

// The controller assigns another VNID while the netid is invalid.
func TestInvalidNetID_assignedVNIDChanges(t *testing.T) {
	f := start(t, config.ModeMultitenant, withRecord(netNamespace("a", 5), "32"))
	f.set("a", 1)
	f.update(withRecord(netNamespace("a", 5), "48"))
	f.wantLoads("1:0x30")
	f.update(withRecord(netNamespace("a", 0x40), "48")) // valid: the record is ignored
	f.wantLoads("1:0x40")
}

// dump is a Bridge with these flows; nil does not answer.
type dump []ovs.DumpedFlow

func (d dump) DumpFlows(context.Context) ([]ovs.DumpedFlow, error) {
	if d == nil {
		return nil, errors.New("no answer")
	}
	return d, nil
}

func dumpOf(t *testing.T, mode string, vnids map[int]config.VNID) dump {
	t.Helper()
	d := dump{{Key: ovs.Key{Table: 253}, Text: "table=253,priority=32768,actions=note:" + mode + ".11.22.33.44.55"}}
	for n, vnid := range vnids {
		for _, f := range flowsOf(n, vnid).Flows {
			key, err := ovs.FlowKey(f)
			if err != nil {
				t.Fatal(err)
			}
			text, err := ovs.FlowText(f)
			if err != nil {
				t.Fatal(err)
			}
			d = append(d, ovs.DumpedFlow{Key: key, Text: text, Cookie: owner(n).Cookie()})
		}
	}
	return d
}

// startOn starts VNIDs on a bridge with flows of a previous agent.
func startOn(t *testing.T, bridge Bridge, flows ovs.Interface, objects ...*networkv1.NetNamespace) (v *VNIDs, stop func(), err error) {
	t.Helper()
	client := fake.NewSimpleClientset()
	for _, o := range objects {
		if _, err := client.NetworkV1().NetNamespaces().Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	informer := fakeapi.NewInformer(client.NetworkV1().NetNamespaces(), &networkv1.NetNamespace{})
	st := flowstore.New(flows)
	v, err = New(Options{
		Node: pipeline.Node{Mode: config.ModeMultitenant}, Lister: networklisters.NewNetNamespaceLister(informer.GetIndexer()),
		Informer: informer, Store: st, Bridge: bridge,
		Get: func(ctx context.Context, name string) (*networkv1.NetNamespace, error) {
			return client.NetworkV1().NetNamespaces().Get(ctx, name, metav1.GetOptions{})
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	stop = fakeapi.Run(t, informer, primed{v, &err}, st)
	return v, stop, err
}

// primed is VNIDs whose Prime may fail.
type primed struct {
	*VNIDs
	err *error
}

func (p primed) Prime(ctx context.Context) error {
	*p.err = p.VNIDs.Prime(ctx)
	return nil
}

// Without a record, an agent that starts continues with the VNID that the bridge has for the namespace's pods.
func TestInvalidNetID_recoveredFromFlows(t *testing.T) {
	tier.Parallel(t)
	for name, tc := range map[string]struct {
		bridge dump
		object *networkv1.NetNamespace
		want   string
	}{
		"no record":             {dumpOf(t, "01", map[int]config.VNID{1: 0x20, 2: 0x20}), netNamespace("a", 5), "1:0x20 2:0x20 3:0x20"},
		"invalid record":        {dumpOf(t, "01", map[int]config.VNID{2: 0x20}), withRecord(netNamespace("a", 5), "x"), "1:0x20 2:0x20 3:0x20"},
		"valid record":          {dumpOf(t, "01", map[int]config.VNID{1: 0x20}), withRecord(netNamespace("a", 5), "48"), "1:0x30 2:0x30 3:0x30"},
		"valid netid":           {dumpOf(t, "01", map[int]config.VNID{1: 0x20}), netNamespace("a", 0x40), "1:0x40 2:0x40 3:0x40"},
		"from mode subnet":      {dumpOf(t, "00", map[int]config.VNID{1: 0, 2: 0}), netNamespace("a", 5), ""},
		"no pods on the bridge": {dumpOf(t, "01", map[int]config.VNID{9: 0x20}), netNamespace("a", 5), ""},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fixture{t: t, bridge: ovs.NewFake("br0")}
			f.noError(f.bridge.EnsureBridge(t.Context(), ovs.Bridge{Name: "br0", DatapathType: "netdev"}))
			var err error
			f.VNIDs, _, err = startOn(t, tc.bridge, f.bridge, tc.object)
			f.noError(err)
			for n := range 3 {
				f.set("a", n+1)
			}
			f.wantLoads(tc.want)
			err = f.require(t.Context(), "a")
			if known := tc.want != ""; known && err != nil || !known && tryAgainCode(err) != types.ErrTryAgainLater {
				t.Errorf("new pod: got %v", err)
			}
		})
	}
	t.Run("the bridge does not answer", func(t *testing.T) {
		_, _, err := startOn(t, dump(nil), ovs.NewFake("br0"), netNamespace("a", 5))
		if err == nil || !strings.Contains(err.Error(), "no answer") {
			t.Errorf("got %v", err)
		}
	})
}

func (f *fixture) noError(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// TestInvalidNetID_recoveredFromSwitch is TestInvalidNetID_recoveredFromFlows with a real Open vSwitch.
func TestInvalidNetID_recoveredFromSwitch(t *testing.T) {
	tier.Parallel(t)
	s := ovstest.Start(t)
	backend := native.New(ovstest.Bridge, s.RunDir)
	t.Cleanup(backend.Close)
	f := &fixture{t: t}
	f.noError(backend.EnsureBridge(t.Context(), ovs.Bridge{Name: ovstest.Bridge, DatapathType: "netdev"}))
	version := pipeline.State{Flows: []*ovs.Flow{{Table: 253, Priority: 1, Actions: []ovs.Action{ovs.Note([]byte{1, 2, 3, 4, 5, 6})}}}}
	agent := func(object *networkv1.NetNamespace, want string) {
		t.Helper()
		v, stop, err := startOn(t, backend, backend, object)
		f.noError(err)
		f.VNIDs = v
		f.must(v.store.SetAll(flowstore.Change{Owner: pipeline.Owner{Kind: pipeline.KindNode, Key: "node1"}, State: version})[0])
		f.set("a", 1)
		f.set("a", 2)
		if got := loads(s.Dump(t)); got != want {
			t.Errorf("netid %d: VNIDs by port: got %q, want %q", object.NetID, got, want)
		}
		stop()
	}
	agent(netNamespace("a", 0x20), "1:0x20 2:0x20")
	agent(netNamespace("a", 5), "1:0x20 2:0x20")
	agent(netNamespace("a", 7), "1:0x20 2:0x20")
}
