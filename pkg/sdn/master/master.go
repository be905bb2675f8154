package master

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"

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
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
	policyclient "sigs.k8s.io/network-policy-api/pkg/client/clientset/versioned"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/discovery"
	"github.com/ovsdn/ovsdn/pkg/sdn/egressstatus"
	"github.com/ovsdn/ovsdn/pkg/sdn/master/certificaterequests"
	"github.com/ovsdn/ovsdn/pkg/sdn/master/diagnosticsca"
	"github.com/ovsdn/ovsdn/pkg/sdn/master/egressassignment"
	"github.com/ovsdn/ovsdn/pkg/sdn/master/egresspolicy"
	"github.com/ovsdn/ovsdn/pkg/sdn/master/netid"
	"github.com/ovsdn/ovsdn/pkg/sdn/master/networkpolicy"
	"github.com/ovsdn/ovsdn/pkg/sdn/master/reachability"
	"github.com/ovsdn/ovsdn/pkg/sdn/master/subnet"
	"github.com/ovsdn/ovsdn/pkg/sdn/master/unidling"
	"github.com/ovsdn/ovsdn/pkg/sdn/master/unsupported"
	"github.com/ovsdn/ovsdn/pkg/sdn/metrics"
	"github.com/ovsdn/ovsdn/pkg/sdn/probes"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

const (
	component = "ovsdn-controller" // in Events, managed fields and the User-Agent

	// Rate limit of API calls. A HostSubnet takes two: 5,000 nodes in 50 seconds. client-go's default (5 per second) would
	// take half an hour. The API server's priority and fairness protects it from overload.
	queriesPerSecond = 200
	queryBurst       = 400

	// Those that users cause have a limit of their own: they do not delay the others.
	userQueriesPerSecond = 50
	userQueryBurst       = 100
)

// Run runs the controller until the context ends. It returns an error only for an invalid configuration. Failures in the cluster are reported
// there, and retried.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	m := &master{Config: cfg, health: &health{}, metrics: newControllerMetrics()}
	var err error
	if m.initial, err = cfg.network(); err != nil {
		return err
	}
	if m.name, err = newIdentity(); err != nil {
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
	ctx = reconcile.WithObserver(ctx, m.metrics.reconciles)
	var serving sync.WaitGroup
	defer serving.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if m.credentials, err = diagnosticsca.NewCredentials(clients.Kube); err != nil {
		return err
	}
	serving.Go(func() { m.credentials.Run(ctx) })
	cfg.Metrics.Certificate = m.credentials.ServingCertificate
	sources := newAPIServers(clients.Kube)
	serving.Go(func() { sources.slice.RunWithContext(ctx) })
	cfg.Metrics.TrustedSource = sources.has
	if cfg.Metrics.Routes, err = m.serveDiagnostics(ctx, &serving); err != nil {
		return err
	}
	serving.Go(func() { metrics.Run(ctx, cfg.Metrics, clients.Kube, m.metrics.registry) })

	klog.FromContext(ctx).Info("Starting controller", "server", cfg.REST.Host, "identity", m.name)
	if !cfg.LeaderElect {
		m.number = rand.Int // without a lease, most likely another number than that of another controller
		return runTerms(ctx, m.term)
	}
	lock := newLock(clients.leases, cfg.LeaderElectNamespace, m.name)
	m.number = lock.term
	return elect(ctx, lock, m.health, m.term)
}

type master struct {
	Config
	initial *config.Network // for a new cluster
	name    string          // of this controller
	clients *clients
	health  *health
	metrics *controllerMetrics
	number  func() int // of this term
	terms   int        // begun

	credentials *diagnosticsca.Credentials
}

// controllers are the controllers of one term, with their informers.
type controllers struct {
	kube           informers.SharedInformerFactory
	network        networkinformers.SharedInformerFactory
	subnets        *subnet.Controller
	netids         *netid.Controller
	policies       *networkpolicy.Controller
	egressPolicies *egresspolicy.Controller
	egressIPs      *egressassignment.Controller
	unsupported    *unsupported.Controller
	clusterNetwork *networkController

	authority *diagnosticsca.Publisher
	requests  *certificaterequests.Controller
	unidling  *unidling.Controller // nil without --unidle
}

// newControllers returns the controllers of the current term, without any state of an earlier one.
func (m *master) newControllers() (*controllers, error) {
	c := &controllers{
		kube:    informers.NewSharedInformerFactoryWithOptions(m.clients.Kube, 0, informers.WithTransform(trim)),
		network: networkinformers.NewSharedInformerFactoryWithOptions(m.clients.Network, 0, networkinformers.WithTransform(trim)),
	}
	core, network := c.kube.Core().V1(), c.network.Network().V1()
	var err error
	if c.subnets, err = subnet.New(m.clients.Clients, core.Nodes(), network.HostSubnets(), m.HostSubnetRetention); err != nil {
		return nil, err
	}
	c.netids, err = netid.New(netid.Clients(m.clients.Clients), core.Namespaces(), network.NetNamespaces(), m.GlobalNamespaces, m.number())
	if err != nil {
		return nil, err
	}
	c.policies, err = networkpolicy.New(networkpolicy.Clients{Kube: m.clients.Kube, Policies: m.clients.policies, Events: m.clients.Events})
	if err != nil {
		return nil, err
	}
	c.egressPolicies, err = egresspolicy.New(network.EgressNetworkPolicies().Informer(), network.NetNamespaces().Informer(), network.HostSubnets().Informer(),
		egressstatus.Client{Network: m.clients.Network}, m.clients.Events)
	if err != nil {
		return nil, err
	}
	informers := egressassignment.Informers{
		NetNamespaces: network.NetNamespaces().Informer(), HostSubnets: network.HostSubnets().Informer(), Nodes: core.Nodes().Informer(),
	}
	c.egressIPs, err = egressassignment.New(egressassignment.Clients{Network: m.clients.Network, Events: m.clients.Events}, informers, reachability.DialTCP)
	if err != nil {
		return nil, err
	}
	c.unsupported, err = unsupported.New(unsupported.Clients{Metadata: m.clients.metadata, Events: m.clients.Events}, network.NetNamespaces().Informer(),
		network.HostSubnets().Informer())
	if err != nil {
		return nil, err
	}
	if c.authority, err = diagnosticsca.NewPublisher(m.clients.Kube, m.clients.metadata); err != nil {
		return nil, err
	}
	if c.requests, err = certificaterequests.New(m.clients.Kube, m.clients.Network, m.credentials.Authority); err != nil {
		return nil, err
	}
	if m.Unidle {
		clients := m.clients.unidling
		clients.Events = m.clients.Events
		if c.unidling, err = unidling.New(clients, unidling.NewInformer(m.clients.Kube)); err != nil {
			return nil, err
		}
	}
	c.clusterNetwork, err = newNetworkController(m.clients.Network, m.clients.Events, m.initial, termName(m.name, m.terms), network, c.apply)
	return c, err
}

// apply activates a network in all controllers, or returns which objects in use conflict with it.
func (c *controllers) apply(ctx context.Context, network *config.Network) error {
	if err := c.subnets.SetNetwork(network); err != nil {
		return err
	}
	c.netids.SetMode(ctx, network.Mode)
	c.policies.SetMode(network.Mode)
	c.egressPolicies.SetMode(network.Mode)
	c.egressIPs.SetNetwork(network)
	c.unsupported.SetMode(network.Mode)
	return nil
}

// term runs the controllers of a leader until the context ends.
func (m *master) term(ctx context.Context) error {
	defer m.health.stopLeading()
	m.terms++
	m.health.setLeading("the API server and the CRDs in deploy/crds")
	c, err := m.newControllers()
	if err != nil {
		return err
	}
	// Shutdown waits for the informers, which end with the context.
	ctx, cancel := context.WithCancel(ctx)
	defer c.kube.Shutdown()
	defer c.network.Shutdown()
	defer cancel()
	if err := discovery.AwaitNetworkAPI(ctx, m.clients.Network); err != nil {
		return nil // the context has ended
	}
	c.kube.StartWithContext(ctx)
	c.network.Start(ctx.Done())
	for _, load := range []func(context.Context) error{c.subnets.Load, c.netids.Load} {
		if err := load(ctx); err != nil {
			return nil // the context has ended
		}
	}
	m.metrics.term.Store(&termState{subnets: c.subnets.Usage, vnids: c.netids.Usage, egressIPs: c.egressIPs.Usage, failovers: c.egressIPs.Failovers})
	defer m.metrics.term.Store(nil)
	m.health.setLeading("a valid ClusterNetwork " + networkv1.ClusterNetworkDefault)
	work, ctx := errgroup.WithContext(ctx)
	work.Go(func() error { return c.clusterNetwork.run(ctx) })
	work.Go(func() error { c.authority.Run(ctx); return nil })
	work.Go(func() error { c.requests.Run(ctx); return nil })
	work.Go(func() error {
		select {
		case <-c.clusterNetwork.accepted:
			m.health.setLeading("")
			work.Go(func() error { c.netids.Run(ctx, m.Workers); return nil })
			work.Go(func() error { c.policies.Run(ctx); return nil })
			work.Go(func() error { c.egressPolicies.Run(ctx); return nil })
			work.Go(func() error { c.egressIPs.Run(ctx); return nil })
			work.Go(func() error { c.unsupported.Run(ctx); return nil })
			if c.unidling != nil {
				work.Go(func() error { c.unidling.Run(ctx); return nil })
			}
			return c.subnets.Run(ctx, m.Workers)
		case <-ctx.Done():
			return nil
		}
	})
	return work.Wait()
}

// clients share a connection. That for leases has a rate limit of its own: a busy leader must not lose its lease.
type clients struct {
	subnet.Clients
	policies   policyclient.Interface
	users      subnet.Clients // for requests of users of the diagnostics API
	metadata   metadata.Interface
	unidling   unidling.Clients // for requests of users
	leases     coordinationv1.LeasesGetter
	disconnect func()

	usersPolicies policyclient.Interface // as users
}

func newClients(restConfig *rest.Config) (*clients, error) {
	restConfig = rest.CopyConfig(restConfig)
	restConfig.UserAgent = component
	restConfig.QPS, restConfig.Burst = queriesPerSecond, queryBurst
	connection, err := rest.HTTPClientFor(restConfig)
	if err != nil {
		return nil, fmt.Errorf("create API server client: %w", err)
	}
	kube, err := kubernetes.NewForConfigAndClient(restConfig, connection)
	if err != nil {
		return nil, fmt.Errorf("create API server client: %w", err)
	}
	leases, err := coordinationv1.NewForConfigAndClient(restConfig, connection)
	if err != nil {
		return nil, fmt.Errorf("create Lease client: %w", err)
	}
	limited := rest.CopyConfig(restConfig)
	limited.QPS, limited.Burst = userQueriesPerSecond, userQueryBurst
	users, err := kubernetes.NewForConfigAndClient(limited, connection)
	if err != nil {
		return nil, fmt.Errorf("create API server client: %w", err)
	}
	usersNetwork, err := networkclient.NewForConfigAndClient(limited, connection)
	if err != nil {
		return nil, fmt.Errorf("create %s client: %w", networkv1.GroupName, err)
	}
	usersPolicies, err := policyclient.NewForConfigAndClient(limited, connection)
	if err != nil {
		return nil, fmt.Errorf("create %s client: %w", policyv1alpha2.GroupName, err)
	}
	network, err := networkclient.NewForConfigAndClient(restConfig, connection)
	if err != nil {
		return nil, fmt.Errorf("create %s client: %w", networkv1.GroupName, err)
	}
	policies, err := policyclient.NewForConfigAndClient(restConfig, connection)
	if err != nil {
		return nil, fmt.Errorf("create %s client: %w", policyv1alpha2.GroupName, err)
	}
	objects, err := metadata.NewForConfigAndClient(metadata.ConfigFor(restConfig), connection)
	if err != nil {
		return nil, fmt.Errorf("create metadata client: %w", err)
	}
	wake, err := unidling.NewClients(limited, connection)
	if err != nil {
		return nil, err
	}
	return &clients{
		metadata: objects,
		unidling: wake,
		Clients:  subnet.Clients{Kube: kube, Network: network},
		policies: policies,
		users:    subnet.Clients{Kube: users, Network: usersNetwork},
		leases:   leases,

		usersPolicies: usersPolicies,

		disconnect: func() { utilnet.CloseIdleConnectionsFor(connection.Transport) },
	}, nil
}

// newRecorder returns a recorder of Events on Kubernetes' objects and ovsdn's, and the function that stops it.
func newRecorder(ctx context.Context, kube kubernetes.Interface) (record.EventRecorder, func(), error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, networkingv1.AddToScheme, networkv1.Install, policyv1alpha2.Install} {
		if err := add(scheme); err != nil {
			return nil, nil, fmt.Errorf("register types for Events: %w", err)
		}
	}
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: kube.CoreV1().Events("")})
	return broadcaster.NewRecorder(scheme, corev1.EventSource{Component: component}), broadcaster.Shutdown, nil
}

// trim removes fields that the controllers don't read before an object is cached. It shrinks a Node of some 10 kB (images, conditions,
// managed fields) to a few hundred bytes.
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
		o.ManagedFields = nil // an update without them does not change them
	case *networkv1.NetNamespace:
		o.ManagedFields = nil
	case *networkv1.EgressNetworkPolicy:
		return config.CompactEgressNetworkPolicy(o), nil
	}
	return o, nil
}

// trimNamespace retains only the annotation that the controller reads: the beginning of its value, which is as invalid as the whole.
func trimNamespace(o *corev1.Namespace) *corev1.Namespace {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion}}
	if value, ok := o.Annotations[config.LogDeniedAnnotation]; ok {
		ns.Annotations = map[string]string{config.LogDeniedAnnotation: config.Shorten(value)}
	}
	return ns
}

// trimConditions retains only the condition NetworkUnavailable, and the status of Ready.
func trimConditions(o *corev1.Node) (conditions []corev1.NodeCondition) {
	if c := config.NetworkUnavailable(o); c != nil {
		conditions = append(conditions, *c)
	}
	for _, c := range o.Status.Conditions {
		if c.Type == corev1.NodeReady {
			conditions = append(conditions, corev1.NodeCondition{Type: c.Type, Status: c.Status})
		}
	}
	return conditions
}
