package policies

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/policy"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// Cluster is where policies and what they select are found.
type Cluster struct {
	Pods            cache.SharedIndexInformer // of all nodes; Slim is enough of them
	Namespaces      cache.SharedIndexInformer
	Nodes           cache.SharedIndexInformer
	NetNamespaces   cache.SharedIndexInformer
	HostSubnets     cache.SharedIndexInformer
	NetworkPolicies cache.SharedIndexInformer
	ClusterPolicies cache.SharedIndexInformer // nil: the cluster does not know the kind

	// HostNetworkNamespaces are the names of namespaces that represent the host networks of all nodes in namespaceSelectors.
	HostNetworkNamespaces []string

	// OutsideEndpoints returns the endpoints by which packets to a service's address are evaluated (services.Services.Outside); the zero
	// address stands for node ports. nil: no service has any.
	OutsideEndpoints func(addr netip.Addr, protocol goovs.Protocol, port uint16) pipeline.OutsideEndpoints

	// GetNamespace asks the API server.
	GetNamespace func(ctx context.Context, name string) (*corev1.Namespace, error)
}

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

// object names an object that may have changed, or be gone.
type object struct {
	kind kind
	key  string
}

// news are the objects that may have changed since they were looked at last, each once.
type news struct {
	due func()

	mu       sync.Mutex
	objects  map[object]struct{}
	policies map[string]map[object]struct{} // NetworkPolicies, by namespace
}

func (n *news) add(o object) {
	n.mu.Lock()
	defer n.mu.Unlock()
	into := n.objects
	if o.kind == kindNetworkPolicy {
		namespace, _, _ := cache.SplitMetaNamespaceKey(o.key) // of an informer, which has made it
		if n.policies[namespace] == nil {
			n.policies[namespace] = map[object]struct{}{}
		}
		into = n.policies[namespace]
	}
	into[o] = struct{}{}
	n.due()
}

// take returns and removes the NetworkPolicies of a namespace, and the objects of all other kinds.
func (n *news) take(namespace string) []object {
	n.mu.Lock()
	defer n.mu.Unlock()
	taken := slices.AppendSeq(slices.Collect(maps.Keys(n.objects)), maps.Keys(n.policies[namespace]))
	clear(n.objects)
	delete(n.policies, namespace)
	return taken
}

// next returns a namespace whose NetworkPolicies changed, and whether there is one.
func (n *news) next() (namespace string, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for namespace := range n.policies {
		return namespace, true
	}
	return "", false
}

// informers are those of the cluster, with what a change in them is a change of.
func (c *Cluster) informers() map[cache.SharedIndexInformer]kind {
	all := map[cache.SharedIndexInformer]kind{
		c.Namespaces:      kindNamespace,
		c.NetNamespaces:   kindNetNamespace,
		c.Nodes:           kindNode,
		c.HostSubnets:     kindNode, // which has the same name
		c.Pods:            kindPod,
		c.NetworkPolicies: kindNetworkPolicy,
	}
	if c.ClusterPolicies != nil {
		all[c.ClusterPolicies] = kindClusterPolicy
	}
	return all
}

// watch has the informers tell of changes.
func (p *Policies) watch() error {
	for informer, k := range p.cluster.informers() {
		add := func(obj any) {
			if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil {
				p.news.add(object{k, key})
			}
		}
		handler, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: add, UpdateFunc: func(_, obj any) { add(obj) }, DeleteFunc: add,
		})
		if err != nil {
			return fmt.Errorf("watching what policies depend on: %w", err)
		}
		p.synced = append(p.synced, handler.HasSynced)
	}
	return nil
}

// cached returns what an informer knows of the object, nil if it is not there.
func cached[T any](informer cache.SharedIndexInformer, key string) *T {
	obj, exists, err := informer.GetStore().GetByKey(key)
	if err != nil || !exists {
		return nil
	}
	o, _ := obj.(*T)
	return o
}

// learn tells the engine what the cluster says of an object now.
func (p *Policies) learn(ctx context.Context, o object) {
	e, c := p.compiler.engine, p.cluster
	namespace, name, _ := cache.SplitMetaNamespaceKey(o.key) // of an informer, which has made it
	var err error
	switch o.kind {
	case kindNamespace:
		if ns := cached[corev1.Namespace](c.Namespaces, o.key); ns != nil {
			e.SetNamespace(name, ns.Labels)
			p.learnLogged(name, ns.Annotations)
		} else {
			e.DeleteNamespace(name)
			p.learnLogged(name, nil)
		}
	case kindNetNamespace:
		p.learnVNID(name)
	case kindNode:
		p.learnNodeNetwork(name)
		p.learnNode(name)
	case kindPod:
		p.learnPod(policy.PodKey{Namespace: namespace, Name: name})
	case kindNetworkPolicy:
		if np := cached[networkingv1.NetworkPolicy](c.NetworkPolicies, o.key); np != nil {
			err = e.SetNetworkPolicy(np)
		} else {
			e.DeleteNetworkPolicy(namespace, name)
		}
	case kindClusterPolicy:
		if cnp := cached[policyv1alpha2.ClusterNetworkPolicy](c.ClusterPolicies, o.key); cnp != nil {
			err = e.SetClusterNetworkPolicy(cnp)
		} else {
			e.DeleteClusterNetworkPolicy(name)
		}
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "A part of a policy can't be carried out, and allows nothing", "policy", o.key)
	}
}

// learnPod prefers what a pod came with, until the watch tells of the same pod: it may still be at one before of the same name.
func (p *Policies) learnPod(key policy.PodKey) {
	pod := p.cachedPod(key)
	if early := p.early[key]; early != nil {
		if pod == nil || pod.UID != early.UID {
			return
		}
		delete(p.early, key)
	}
	_, here := p.compiler.local[key]
	switch {
	case pod != nil:
		p.compiler.engine.SetPod(policy.NewPod(pod))
	case here:
		p.compiler.engine.EndPod(key)
	default:
		p.compiler.engine.DeletePod(key)
	}
}

func (p *Policies) cachedPod(key policy.PodKey) *corev1.Pod {
	return cached[corev1.Pod](p.cluster.Pods, cache.ObjectName{Namespace: key.Namespace, Name: key.Name}.String())
}

// learnVNID leaves the VNID as it was while the NetNamespace is not usable, as those do who load it.
func (p *Policies) learnVNID(name string) {
	o := cached[networkv1.NetNamespace](p.cluster.NetNamespaces, name)
	if o == nil {
		p.compiler.engine.SetVNID(name, 0)
		return
	}
	if n, err := config.ParseNetNamespace(o); err == nil {
		p.compiler.engine.SetVNID(n.Name, uint32(n.VNID))
	}
}

// learnNode takes a node's own addresses, and those that it has in the pod network.
func (p *Policies) learnNode(name string) {
	node := cached[corev1.Node](p.cluster.Nodes, name)
	if node == nil {
		p.compiler.engine.DeleteNode(name)
		return
	}
	var addrs []netip.Addr
	for _, a := range node.Status.Addresses {
		if addr, err := netip.ParseAddr(a.Address); err == nil { // the others are names
			addrs = append(addrs, addr.Unmap())
		}
	}
	if o := cached[networkv1.HostSubnet](p.cluster.HostSubnets, name); o != nil {
		if h, err := config.ParseHostSubnet(o); err == nil {
			for _, subnet := range h.Subnets {
				addrs = append(addrs, config.Gateway(subnet))
			}
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	p.compiler.engine.SetNode(name, node.Labels, slices.Compact(addrs)...)
}

// learnNodeNetwork sets the addresses from which a node opens connections to pods. As in the flows of table 10, the last valid ones stay in use
// while the HostSubnet is invalid, and a machine that is no node has none.
func (p *Policies) learnNodeNetwork(name string) {
	o := cached[networkv1.HostSubnet](p.cluster.HostSubnets, name)
	if o == nil || !config.IsNode(o) {
		p.compiler.engine.SetNodeNetwork(name, netip.Addr{})
		return
	}
	h, err := config.ParseHostSubnet(o)
	if err != nil {
		return
	}
	var inside []netip.Addr
	for _, subnet := range h.Subnets {
		inside = append(inside, config.Gateway(subnet))
	}
	p.compiler.engine.SetNodeNetwork(name, h.HostIP, inside...)
}

// Slim reduces objects to what policies ask for: there are many, and every node knows them all. Annotations, which may be large, are removed but for
// those that are read, and so are the rules of a policy beyond its budget. It is an informer's transform.
func Slim(obj any) (any, error) {
	switch o := obj.(type) {
	case *corev1.Pod:
		return slimPod(o), nil
	case *corev1.Node:
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: o.Name, UID: o.UID, Labels: o.Labels, ResourceVersion: o.ResourceVersion},
			Status:     corev1.NodeStatus{Addresses: o.Status.Addresses},
		}, nil
	case *corev1.Namespace:
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: o.Name, UID: o.UID, Labels: o.Labels, ResourceVersion: o.ResourceVersion, Annotations: slimAnnotations(o.Annotations),
		}}, nil
	case *networkingv1.NetworkPolicy:
		return policy.Compact(o), nil
	case *policyv1alpha2.ClusterNetworkPolicy:
		slim := *o
		slim.ManagedFields, slim.Annotations = nil, nil
		return &slim, nil
	}
	return obj, nil
}

// slimAnnotations leaves what learnLogged reads.
func slimAnnotations(all map[string]string) map[string]string {
	if logged, _ := config.ParseLogDenied(all); logged {
		return map[string]string{config.LogDeniedAnnotation: all[config.LogDeniedAnnotation]}
	}
	return nil
}

func slimPod(pod *corev1.Pod) *corev1.Pod {
	slim := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Labels: pod.Labels, ResourceVersion: pod.ResourceVersion,
		},
		Spec:   corev1.PodSpec{HostNetwork: pod.Spec.HostNetwork},
		Status: corev1.PodStatus{Phase: pod.Status.Phase, PodIPs: pod.Status.PodIPs},
	}
	for i := range pod.Spec.Containers {
		slim.Spec.Containers = append(slim.Spec.Containers, slimContainer(&pod.Spec.Containers[i]))
	}
	for i := range pod.Spec.InitContainers {
		slim.Spec.InitContainers = append(slim.Spec.InitContainers, slimContainer(&pod.Spec.InitContainers[i]))
	}
	return slim
}

func slimContainer(c *corev1.Container) corev1.Container {
	return corev1.Container{Ports: c.Ports, RestartPolicy: c.RestartPolicy}
}
