package master

import (
	"context"
	"slices"
	"strings"
	"testing"

	networkv1 "github.com/openshift/api/network/v1"
	networkfake "github.com/openshift/client-go/network/clientset/versioned/fake"
	networkinformers "github.com/openshift/client-go/network/informers/externalversions"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// serviceProxyTest has a controller that is not running, and its ClusterNetwork.
type serviceProxyTest struct {
	*networkController
	client  *networkfake.Clientset
	events  *record.FakeRecorder
	subnets cache.Store
}

func newServiceProxyTest(t *testing.T, flag config.ServiceProxy, stored *networkv1.ClusterNetwork) *serviceProxyTest {
	t.Helper()
	initial := initialNetwork(t)
	initial.ServiceProxy = flag
	s := &serviceProxyTest{client: networkfake.NewClientset(), events: record.NewFakeRecorder(10)}
	if stored != nil {
		if _, err := s.client.NetworkV1().ClusterNetworks().Create(t.Context(), stored, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	informers := networkinformers.NewSharedInformerFactory(s.client, 0).Network().V1()
	s.subnets = informers.HostSubnets().Informer().GetStore()
	var err error
	s.networkController, err = newNetworkController(s.client, s.events, initial, "me", informers, func(context.Context, *config.Network) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// reconciled returns the object after a reconciliation.
func (s *serviceProxyTest) reconciled(t *testing.T) *networkv1.ClusterNetwork {
	t.Helper()
	if err := s.reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	o, err := s.client.NetworkV1().ClusterNetworks().Get(t.Context(), networkv1.ClusterNetworkDefault, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// set writes the annotation; "": deletes it.
func (s *serviceProxyTest) set(t *testing.T, o *networkv1.ClusterNetwork, value string) {
	t.Helper()
	metav1.SetMetaDataAnnotation(&o.ObjectMeta, config.ServiceProxyAnnotation, value)
	if value == "" {
		delete(o.Annotations, config.ServiceProxyAnnotation)
	}
	if _, err := s.client.NetworkV1().ClusterNetworks().Update(t.Context(), o, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// warned returns whether an Event with the reason was sent, and deletes the Events.
func (s *serviceProxyTest) warned(reason string) bool {
	var all []string
	for len(s.events.Events) > 0 {
		all = append(all, <-s.events.Events)
	}
	return slices.ContainsFunc(all, func(event string) bool { return strings.HasPrefix(event, "Warning "+reason+" ") })
}

// The flag is written to a new object, and to no other. An object without the annotation, as of an earlier version, has external whatever the flag is, and no Event
// about it: after an upgrade the flag has the default of new clusters. With the annotation, an Event reports that the flag differs.
func TestNetworkController_serviceProxy(t *testing.T) {
	const external, ovs = config.ServiceProxyExternal, config.ServiceProxyOVS
	const noAnnotation = "; service proxy external (no annotation ovsdn.io/service-proxy)"
	defaultFlag := config.ServiceProxy(Defaults().ServiceProxy)
	if defaultFlag != ovs {
		t.Errorf("got %q by default, want %q", defaultFlag, ovs)
	}
	for _, tc := range []struct {
		name            string
		flag            config.ServiceProxy
		exists, earlier bool
		stored          config.ServiceProxy // of the object that exists
		object, active  config.ServiceProxy // after the reconciliation; the accepted configuration always has one
		message         string              // among the condition's
		warns           bool
	}{
		{name: "new cluster", flag: defaultFlag, object: ovs, active: ovs, message: "; service proxy ovs"},
		{name: "new cluster with external", flag: external, object: external, active: external, message: "; service proxy external"},
		{name: "earlier version", flag: external, exists: true, earlier: true, active: external, message: noAnnotation},
		{name: "earlier version, default flag", flag: defaultFlag, exists: true, earlier: true, active: external, message: noAnnotation},
		{name: "object of a user", flag: defaultFlag, exists: true, active: external, message: noAnnotation},
		{name: "flag differs", flag: external, exists: true, stored: ovs, object: ovs, active: ovs, message: "; service proxy ovs", warns: true},
		{
			name: "flag differs from external", flag: defaultFlag, exists: true, stored: external, object: external, active: external,
			message: "; service proxy external", warns: true,
		},
		{name: "same", flag: defaultFlag, exists: true, stored: ovs, object: ovs, active: ovs, message: "; service proxy ovs"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var stored *networkv1.ClusterNetwork
			if tc.exists {
				n := initialNetwork(t)
				n.ServiceProxy = tc.stored
				stored = n.Object()
				if accepted, err := n.Accepted(); err != nil {
					t.Fatal(err)
				} else if tc.earlier {
					metav1.SetMetaDataAnnotation(&stored.ObjectMeta, config.AcceptedAnnotation, accepted)
				}
			}
			s := newServiceProxyTest(t, tc.flag, stored)
			o := s.reconciled(t)
			active, err := config.ActiveNetwork(o)
			if err != nil {
				t.Fatal(err)
			}
			if got := config.ServiceProxy(o.Annotations[config.ServiceProxyAnnotation]); got != tc.object || active.ServiceProxy != tc.active {
				t.Errorf("got %q in the object and %q active, want %q and %q", got, active.ServiceProxy, tc.object, tc.active)
			}
			if got := s.warned("DiffersFromFlags"); got != tc.warns {
				t.Errorf("got an Event about the flag: %t, want %t", got, tc.warns)
			}
			conditions, err := config.Conditions(o)
			if err != nil || len(conditions) != 1 || !strings.HasSuffix(conditions[0].Message, tc.message) {
				t.Errorf("got conditions %+v, %v, want one with %q", conditions, err, tc.message)
			}
		})
	}
}

// The service proxy changes while the controller runs. An invalid value, or none while it is ovs, changes nothing, and the condition names the annotation.
func TestNetworkController_serviceProxyChanges(t *testing.T) {
	s := newServiceProxyTest(t, config.ServiceProxyExternal, nil)
	o := s.reconciled(t)
	for _, step := range []struct {
		value         string
		active        config.ServiceProxy
		reason, among string // of the condition
	}{
		{"ovs", config.ServiceProxyOVS, config.ReasonAccepted, "; service proxy ovs"},
		{"iptables", config.ServiceProxyOVS, config.ReasonInvalid, `annotation ovsdn.io/service-proxy: "iptables" is not a service proxy`},
		{"external", config.ServiceProxyExternal, config.ReasonAccepted, "; service proxy external"},
		{"ovs", config.ServiceProxyOVS, config.ReasonAccepted, "; service proxy ovs"},
		{"", config.ServiceProxyOVS, config.ReasonInvalid, "annotation ovsdn.io/service-proxy is missing; write ovs, or external to change to kube-proxy"},
		{"external", config.ServiceProxyExternal, config.ReasonAccepted, "; service proxy external"},
		{"", config.ServiceProxyExternal, config.ReasonAccepted, "; service proxy external (no annotation ovsdn.io/service-proxy)"},
	} {
		s.set(t, o, step.value)
		o = s.reconciled(t)
		active, err := config.ActiveNetwork(o)
		if err != nil {
			t.Fatal(err)
		}
		conditions, err := config.Conditions(o)
		if err != nil || len(conditions) != 1 {
			t.Fatalf("got conditions %v, %v, want one", conditions, err)
		}
		if c := conditions[0]; active.ServiceProxy != step.active || c.Reason != step.reason || !strings.Contains(c.Message, step.among) {
			t.Errorf("after %q: got %q active, and condition %+v, want %q, reason %s, %q", step.value, active.ServiceProxy, c, step.active, step.reason, step.among)
		}
	}
}

// Later terms of controllers with the default flag leave an object of an earlier version as it is, too. Their accepted configuration has external, so that agents follow
// no annotation before it is accepted.
func TestNetworkController_retainsExternal(t *testing.T) {
	n := initialNetwork(t)
	stored := n.Object()
	accepted, err := n.Accepted()
	if err != nil {
		t.Fatal(err)
	}
	metav1.SetMetaDataAnnotation(&stored.ObjectMeta, config.AcceptedAnnotation, accepted)
	n.ServiceProxy = config.ServiceProxyExternal
	if accepted, err = n.Accepted(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		s := newServiceProxyTest(t, config.ServiceProxyOVS, stored)
		stored = s.reconciled(t)
		if value, ok := stored.Annotations[config.ServiceProxyAnnotation]; ok || stored.Annotations[config.AcceptedAnnotation] != accepted {
			t.Fatalf("got annotation %q, and accepted configuration %s, want none, and %s", value, stored.Annotations[config.AcceptedAnnotation], accepted)
		}
		if s.warned("DiffersFromFlags") || s.warned("AcceptedClusterNetwork") {
			t.Error("got an Event, want none")
		}
		stored.ResourceVersion = ""
	}
}

// An annotation that is edited while the object is invalid is not accepted, and agents do not follow it. One that agents follow already, since a controller of an earlier
// version has accepted the configuration without service proxy, is accepted.
func TestNetworkController_unacceptedServiceProxy(t *testing.T) {
	for _, tc := range []struct {
		name    string
		earlier bool // the annotation was written before this controller led
		want    config.ServiceProxy
	}{
		{"edited", false, config.ServiceProxyExternal},
		{"of an earlier version", true, config.ServiceProxyOVS},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := initialNetwork(t)
			stored := n.Object()
			accepted, err := n.Accepted()
			if err != nil {
				t.Fatal(err)
			}
			metav1.SetMetaDataAnnotation(&stored.ObjectMeta, config.AcceptedAnnotation, accepted)
			edit := func(o *networkv1.ClusterNetwork) {
				metav1.SetMetaDataAnnotation(&o.ObjectMeta, config.ServiceProxyAnnotation, "ovs")
				o.ServiceNetwork = "invalid"
			}
			if tc.earlier {
				edit(stored)
			}
			s := newServiceProxyTest(t, config.ServiceProxyOVS, stored)
			o := s.reconciled(t)
			if !tc.earlier {
				edit(o)
				if _, err := s.client.NetworkV1().ClusterNetworks().Update(t.Context(), o, metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
				o = s.reconciled(t)
			}
			active, err := config.ActiveNetwork(o)
			if err != nil || active.ServiceProxy != tc.want {
				t.Errorf("got %+v, %v, want service proxy %s", active, err, tc.want)
			}
			if conditions, err := config.Conditions(o); err != nil || len(conditions) != 1 || conditions[0].Reason != config.ReasonInvalid {
				t.Errorf("got conditions %+v, %v, want reason %s", conditions, err, config.ReasonInvalid)
			}
		})
	}
}

// A ClusterNetwork that was deleted while no controller led is not created from flags, which may differ from what nodes use, such as the default service proxy in a
// cluster with kube-proxy. Only HostSubnets of nodes that exist show a cluster that is not new.
func TestNetworkController_deletedClusterNetwork(t *testing.T) {
	hostSubnet := func(name string, annotations map[string]string) *networkv1.HostSubnet {
		return &networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}, Host: name, HostIP: "192.0.2.1", Subnet: "10.128.0.0/23"}
	}
	add := func(s *serviceProxyTest, o *networkv1.HostSubnet) {
		t.Helper()
		if err := s.subnets.Add(o); err != nil {
			t.Fatal(err)
		}
	}
	ofMachine := hostSubnet("f5", map[string]string{networkv1.AssignHostSubnetAnnotation: "true"})
	ofNode := hostSubnet("node1", map[string]string{networkv1.NodeUIDAnnotation: "uid"})

	s := newServiceProxyTest(t, config.ServiceProxyOVS, nil)
	add(s, ofMachine)
	add(s, hostSubnet("node2", map[string]string{networkv1.NodeUIDAnnotation: "uid", config.NodeDeletedAnnotation: "2026-01-01T00:00:00Z"}))
	if got := s.reconciled(t).Annotations[config.ServiceProxyAnnotation]; got != "ovs" {
		t.Errorf("new cluster: got service proxy %q, want that of the flags", got)
	}

	for _, flag := range []config.ServiceProxy{config.ServiceProxyOVS, config.ServiceProxyExternal} {
		s := newServiceProxyTest(t, flag, nil)
		add(s, ofNode)
		for attempt := range 2 {
			if err := s.reconcile(t.Context()); err != nil || isClosed(s.accepted) {
				t.Fatalf("flag %s: got error %v, accepted %t, want neither", flag, err, isClosed(s.accepted))
			}
			list, err := s.client.NetworkV1().ClusterNetworks().List(t.Context(), metav1.ListOptions{})
			if err != nil || len(list.Items) > 0 {
				t.Fatalf("flag %s: got %v, %v, want no ClusterNetwork", flag, list, err)
			}
			if got, want := s.warned("ClusterNetworkDeleted"), attempt == 0; got != want {
				t.Errorf("flag %s, attempt %d: got an Event: %t, want %t", flag, attempt, got, want)
			}
		}
		restored := initialNetwork(t)
		restored.ServiceProxy = config.ServiceProxyExternal
		if _, err := s.client.NetworkV1().ClusterNetworks().Create(t.Context(), restored.Object(), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if o := s.reconciled(t); !isClosed(s.accepted) || o.Annotations[config.ServiceProxyAnnotation] != "external" {
			t.Errorf("flag %s: after it was restored: got accepted %t, annotations %v", flag, isClosed(s.accepted), o.Annotations)
		}
		// The active network of this controller is known.
		if err := s.client.NetworkV1().ClusterNetworks().Delete(t.Context(), networkv1.ClusterNetworkDefault, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if got := s.reconciled(t).Annotations[config.ServiceProxyAnnotation]; got != "external" {
			t.Errorf("flag %s: deleted while the controller leads: got service proxy %q, want the active one", flag, got)
		}
	}
}
