package networkpolicy

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// Cluster has the informers of the objects that policies depend on. Transform is their cache.TransformFunc.
type Cluster struct {
	Pods            cache.SharedIndexInformer // of all nodes
	Namespaces      cache.SharedIndexInformer
	Nodes           cache.SharedIndexInformer
	NetNamespaces   cache.SharedIndexInformer
	HostSubnets     cache.SharedIndexInformer
	NetworkPolicies cache.SharedIndexInformer
	ClusterPolicies cache.SharedIndexInformer // nil: the API server has no ClusterNetworkPolicies

	// HostNetworkNamespaces are the names of namespaces that represent the host networks of all nodes in namespaceSelectors.
	HostNetworkNamespaces []string

	OutsideEndpoints OutsideEndpoints // nil: no service has any

	// GetNamespace reads the namespace from the API server.
	GetNamespace func(ctx context.Context, name string) (*corev1.Namespace, error)
}

// OutsideEndpoints returns the endpoints by which packets to an address and port of a service are evaluated (services.Services.Outside). The zero
// address stands for node ports.
type OutsideEndpoints func(addr netip.Addr, protocol goovs.Protocol, port uint16) pipeline.OutsideEndpoints

// kind is a kind of object that policies depend on.
type kind uint8

const (
	kindNamespace kind = iota
	kindNetNamespace
	kindNode
	kindPod
	kindNetworkPolicy
	kindClusterPolicy
)

// objectRef identifies an object, which may have been deleted.
type objectRef struct {
	kind kind
	key  string
	uid  types.UID // of a pod (config.PodUID)
}

// changeQueue has the objects that changed since the engine was updated, each once.
type changeQueue struct {
	notify func() // called after each change

	mu       sync.Mutex
	objects  map[objectRef]struct{}
	policies map[string]map[objectRef]struct{} // NetworkPolicies, by namespace
}

func newChangeQueue(notify func()) changeQueue {
	return changeQueue{notify: notify, objects: map[objectRef]struct{}{}, policies: map[string]map[objectRef]struct{}{}}
}

func (q *changeQueue) add(o objectRef) {
	q.mu.Lock()
	defer q.mu.Unlock()
	into := q.objects
	if o.kind == kindNetworkPolicy {
		namespace, _, _ := cache.SplitMetaNamespaceKey(o.key) // a valid key of an informer
		if q.policies[namespace] == nil {
			q.policies[namespace] = map[objectRef]struct{}{}
		}
		into = q.policies[namespace]
	}
	into[o] = struct{}{}
	q.notify()
}

// take returns and removes the NetworkPolicies of a namespace, and the objects of all other kinds.
func (q *changeQueue) take(namespace string) []objectRef {
	q.mu.Lock()
	defer q.mu.Unlock()
	taken := slices.AppendSeq(slices.Collect(maps.Keys(q.objects)), maps.Keys(q.policies[namespace]))
	clear(q.objects)
	delete(q.policies, namespace)
	return taken
}

// next returns a namespace with changed NetworkPolicies; false if there is none.
func (q *changeQueue) next() (namespace string, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for namespace := range q.policies {
		return namespace, true
	}
	return "", false
}

// informers returns the informers, with the kind of object that each of their events changes.
func (c *Cluster) informers() map[cache.SharedIndexInformer]kind {
	all := map[cache.SharedIndexInformer]kind{
		c.Namespaces:      kindNamespace,
		c.NetNamespaces:   kindNetNamespace,
		c.Nodes:           kindNode,
		c.HostSubnets:     kindNode, // a HostSubnet has the name of its Node
		c.Pods:            kindPod,
		c.NetworkPolicies: kindNetworkPolicy,
	}
	if c.ClusterPolicies != nil {
		all[c.ClusterPolicies] = kindClusterPolicy
	}
	return all
}

// watch adds event handlers that queue changed objects.
func (p *Policies) watch() error {
	for informer, k := range p.cluster.informers() {
		add := func(obj any) {
			if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil {
				p.changes.add(objectRef{k, key, podUID(obj)})
			}
		}
		handler, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: add, DeleteFunc: add,
			UpdateFunc: func(old, obj any) {
				if podUID(old) != podUID(obj) { // the watch missed the deletion of a pod
					add(old)
				}
				add(obj)
			},
		})
		if err != nil {
			return fmt.Errorf("watch objects that policies depend on: %w", err)
		}
		p.synced = append(p.synced, handler.HasSynced)
	}
	return nil
}

// podUID returns config.PodUID of a pod, which may be deleted; "" of an object of another kind.
func podUID(obj any) types.UID {
	if deleted, is := obj.(cache.DeletedFinalStateUnknown); is {
		obj = deleted.Obj
	}
	if pod, is := obj.(*corev1.Pod); is {
		return config.PodUID(pod)
	}
	return ""
}
