package master

import (
	"context"
	"fmt"
	"math/rand/v2"

	networkv1 "github.com/openshift/api/network/v1"
	networkclient "github.com/openshift/client-go/network/clientset/versioned"
	networkinformers "github.com/openshift/client-go/network/informers/externalversions"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
	policyclient "sigs.k8s.io/network-policy-api/pkg/client/clientset/versioned"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/master/netid"
	"github.com/ovsdn/ovsdn/pkg/sdn/master/policies"
	"github.com/ovsdn/ovsdn/pkg/sdn/master/subnet"
	"github.com/ovsdn/ovsdn/pkg/sdn/probes"
)

const (
	component = "ovsdn-controller" // in Events, managed fields and the User-Agent

	// The pace of API calls, two of which make a HostSubnet: 5,000 nodes in 50 seconds. client-go's own (5 a second) would
	// need half an hour; the server's priority and fairness guard it against more than it bears.
	queriesPerSecond = 200
	queryBurst       = 400
)

// Run is the master, until the context ends. It returns an error only for a configuration that can't work: whatever is
// amiss in the cluster is said there and waited out.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	m := &master{Config: cfg, health: &health{}}
	var err error
	if m.wish, err = cfg.network(); err != nil {
		return err
	}
	if m.name, err = newName(); err != nil {
		return err
	}
	clients, err := newClients(cfg.REST)
	if err != nil {
		return err
	}
	defer clients.disconnect()
	events, stopEvents, err := newRecorder(ctx, clients.Kube)
	if err != nil {
		return err
	}
	defer stopEvents()
	clients.Events = events
	m.clients = clients
	stopProbes, err := probes.Serve(ctx, cfg.HealthzAddress, m.health.checks())
	if err != nil {
		return err
	}
	defer stopProbes()

	klog.FromContext(ctx).Info("Starting", "server", cfg.REST.Host, "name", m.name)
	if !cfg.LeaderElect {
		m.number = rand.Int // that of any other is another, most likely
		return rule(ctx, m.term)
	}
	lock := newLock(clients.leases, cfg.LeaderElectNamespace, m.name)
	m.number = lock.term
	return elect(ctx, lock, m.health, m.term)
}

type master struct {
	Config
	wish    *config.Network
	name    string // of this controller
	clients *clients
	health  *health
	number  func() int // of this term
	terms   int        // begun
}

// term is the work of a leader, until the context ends. It begins with what the API server has, and remembers
// nothing of a term before.
func (m *master) term(ctx context.Context) error {
	defer m.health.resign()
	m.terms++
	m.health.lead("the API server and the kinds in deploy/crds")
	kube := informers.NewSharedInformerFactoryWithOptions(m.clients.Kube, 0, informers.WithTransform(trim))
	ours := networkinformers.NewSharedInformerFactoryWithOptions(m.clients.Network, 0, networkinformers.WithTransform(trim))
	subnets, err := subnet.New(m.clients.Clients, kube.Core().V1().Nodes(), ours.Network().V1().HostSubnets())
	if err != nil {
		return err
	}
	netids, err := netid.New(netid.Clients(m.clients.Clients), kube.Core().V1().Namespaces(), ours.Network().V1().NetNamespaces(), m.GlobalNamespaces, m.number())
	if err != nil {
		return err
	}
	judged, err := policies.New(policies.Clients{Kube: m.clients.Kube, Policies: m.clients.policies, Events: m.clients.Events})
	if err != nil {
		return err
	}
	follow := func(ctx context.Context, network *config.Network) error {
		if err := subnets.Follow(network); err != nil {
			return err
		}
		netids.Follow(ctx, network.Mode)
		judged.Follow(network.Mode)
		return nil
	}
	keeper, err := newNetworkKeeper(m.clients.Network, m.clients.Events, m.wish, termName(m.name, m.terms), ours.Network().V1().ClusterNetworks(), follow)
	if err != nil {
		return err
	}
	// The informers end with the context, and only then can their factories be shut down.
	ctx, cancel := context.WithCancel(ctx)
	defer kube.Shutdown()
	defer ours.Shutdown()
	defer cancel()
	if err := awaitKinds(ctx, m.clients.Network); err != nil {
		return nil // the context has ended
	}
	kube.StartWithContext(ctx)
	ours.Start(ctx.Done())
	for _, load := range []func(context.Context) error{subnets.Load, netids.Load} {
		if err := load(ctx); err != nil {
			return nil // the context has ended
		}
	}
	m.health.lead("a valid ClusterNetwork " + networkv1.ClusterNetworkDefault)
	work, ctx := errgroup.WithContext(ctx)
	work.Go(func() error { return keeper.run(ctx) })
	work.Go(func() error {
		select {
		case <-keeper.inForce:
			m.health.lead("")
			work.Go(func() error { netids.Run(ctx, m.Workers); return nil })
			work.Go(func() error { judged.Run(ctx); return nil })
			return subnets.Run(ctx, m.Workers)
		case <-ctx.Done():
			return nil
		}
	})
	return work.Wait()
}

// clients share their connection. The leases' are not paced with the others: a leader with much to do must not lose its lease
// for that.
type clients struct {
	subnet.Clients
	policies   policyclient.Interface
	leases     coordinationv1.LeasesGetter
	disconnect func()
}

func newClients(restConfig *rest.Config) (*clients, error) {
	restConfig = rest.CopyConfig(restConfig)
	restConfig.UserAgent = component
	restConfig.QPS, restConfig.Burst = queriesPerSecond, queryBurst
	connection, err := rest.HTTPClientFor(restConfig)
	if err != nil {
		return nil, fmt.Errorf("make a client of the API server: %w", err)
	}
	kube, err := kubernetes.NewForConfigAndClient(restConfig, connection)
	if err != nil {
		return nil, fmt.Errorf("make a client of the API server: %w", err)
	}
	leases, err := coordinationv1.NewForConfigAndClient(restConfig, connection)
	if err != nil {
		return nil, fmt.Errorf("make a client for leases: %w", err)
	}
	network, err := networkclient.NewForConfigAndClient(restConfig, connection)
	if err != nil {
		return nil, fmt.Errorf("make a client of %s: %w", networkv1.GroupName, err)
	}
	kinds, err := policyclient.NewForConfigAndClient(restConfig, connection)
	if err != nil {
		return nil, fmt.Errorf("make a client of %s: %w", policyv1alpha2.GroupName, err)
	}
	return &clients{
		Clients:    subnet.Clients{Kube: kube, Network: network},
		policies:   kinds,
		leases:     leases,
		disconnect: func() { utilnet.CloseIdleConnectionsFor(connection.Transport) },
	}, nil
}

// newRecorder returns a recorder of Events on Kubernetes' objects and ours.
func newRecorder(ctx context.Context, kube kubernetes.Interface) (record.EventRecorder, func(), error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, networkingv1.AddToScheme, networkv1.Install, policyv1alpha2.Install} {
		if err := add(scheme); err != nil {
			return nil, nil, fmt.Errorf("register the kinds that Events are about: %w", err)
		}
	}
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: kube.CoreV1().Events("")})
	return broadcaster.NewRecorder(scheme, corev1.EventSource{Component: component}), broadcaster.Shutdown, nil
}

// trim drops what the controllers don't read before an object is cached: of a Node's some 10 kB (images, conditions,
// who manages which field) a few hundred bytes are left.
func trim(o any) (any, error) {
	switch o := o.(type) {
	case *corev1.Node:
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion},
			Status:     corev1.NodeStatus{Addresses: o.Status.Addresses, Conditions: trimConditions(o)},
		}, nil
	case *corev1.Namespace:
		return trimNamespace(o), nil
	case *networkv1.HostSubnet:
		o.ManagedFields = nil // the API server takes an update without them for no change
	case *networkv1.NetNamespace:
		o.ManagedFields = nil
	}
	return o, nil
}

// trimNamespace leaves the annotation that is ours.
func trimNamespace(o *corev1.Namespace) *corev1.Namespace {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion}}
	if value, ok := o.Annotations[config.LogDeniedAnnotation]; ok {
		ns.Annotations = map[string]string{config.LogDeniedAnnotation: value}
	}
	return ns
}

// trimConditions leaves the condition that is ours too.
func trimConditions(o *corev1.Node) []corev1.NodeCondition {
	if c := config.NetworkUnavailable(o); c != nil {
		return []corev1.NodeCondition{*c}
	}
	return nil
}
