package master

import (
	"context"
	"fmt"

	networkv1 "github.com/openshift/api/network/v1"
	networkclient "github.com/openshift/client-go/network/clientset/versioned"
	networkinformers "github.com/openshift/client-go/network/informers/externalversions"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/master/subnet"
)

const (
	component = "ovsdn-controller" // in Events, managed fields and the User-Agent

	// The pace of API calls. client-go's own (5 a second) would need half an hour for 5,000 nodes; the server's priority
	// and fairness guard it against more than it bears.
	queriesPerSecond = 100
	queryBurst       = 200
)

// Run is the master, until the context ends. It returns an error only for a configuration that can't work: whatever is
// amiss in the cluster is said there and waited out.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	wish, err := cfg.network()
	if err != nil {
		return err
	}
	clients, disconnect, err := newClients(cfg.REST)
	if err != nil {
		return err
	}
	defer disconnect()
	events, stopEvents, err := newRecorder(ctx, clients.Kube)
	if err != nil {
		return err
	}
	defer stopEvents()
	clients.Events = events

	klog.FromContext(ctx).Info("Starting", "server", cfg.REST.Host)
	keeper := &networkKeeper{client: clients.Network, events: events, wish: wish}
	network, err := keeper.await(ctx)
	if err != nil {
		return nil // the context has ended
	}
	klog.FromContext(ctx).Info("The cluster's network", "network", network)

	kube := informers.NewSharedInformerFactoryWithOptions(clients.Kube, 0, informers.WithTransform(trim))
	ours := networkinformers.NewSharedInformerFactoryWithOptions(clients.Network, 0, networkinformers.WithTransform(trim))
	subnets, err := subnet.New(clients, network, kube.Core().V1().Nodes(), ours.Network().V1().HostSubnets())
	if err != nil {
		return err
	}
	// The informers end with the context, and only then can their factories be shut down.
	ctx, cancel := context.WithCancel(ctx)
	defer kube.Shutdown()
	defer ours.Shutdown()
	defer cancel()
	kube.StartWithContext(ctx)
	ours.Start(ctx.Done())
	return subnets.Run(ctx, cfg.Workers)
}

// newClients returns clients that share their connection, and what closes it.
func newClients(restConfig *rest.Config) (subnet.Clients, func(), error) {
	restConfig = rest.CopyConfig(restConfig)
	restConfig.UserAgent = component
	restConfig.QPS, restConfig.Burst = queriesPerSecond, queryBurst
	connection, err := rest.HTTPClientFor(restConfig)
	if err != nil {
		return subnet.Clients{}, nil, fmt.Errorf("make a client of the API server: %w", err)
	}
	kube, err := kubernetes.NewForConfigAndClient(restConfig, connection)
	if err != nil {
		return subnet.Clients{}, nil, fmt.Errorf("make a client of the API server: %w", err)
	}
	network, err := networkclient.NewForConfigAndClient(restConfig, connection)
	if err != nil {
		return subnet.Clients{}, nil, fmt.Errorf("make a client of %s: %w", networkv1.GroupName, err)
	}
	disconnect := func() { utilnet.CloseIdleConnectionsFor(connection.Transport) }
	return subnet.Clients{Kube: kube, Network: network}, disconnect, nil
}

// newRecorder returns a recorder of Events on Kubernetes' objects and ours.
func newRecorder(ctx context.Context, kube kubernetes.Interface) (record.EventRecorder, func(), error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, networkv1.Install} {
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
			Status:     corev1.NodeStatus{Addresses: o.Status.Addresses},
		}, nil
	case *networkv1.HostSubnet:
		o.ManagedFields = nil // the API server takes an update without them for no change
	}
	return o, nil
}
