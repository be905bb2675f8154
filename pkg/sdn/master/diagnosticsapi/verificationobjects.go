package diagnosticsapi

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/pager"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/master/verification"
	"github.com/ovsdn/ovsdn/pkg/sdn/oracle"
)

const (
	objectPage           = 500    // objects of an answer of the API server
	maxVerifiedPolicies  = 20_000 // of each kind
	maxVerifiedNamespace = 100_000
)

// tooManyObjectsError is the error of a verification that would read too many objects.
type tooManyObjectsError struct {
	kind string
	most int
}

// Error implements error.
func (e *tooManyObjectsError) Error() string {
	return fmt.Sprintf("there are more than %d %s: bind ClusterRole ovsdn-verifications in single namespaces, and use --namespace", e.most, e.kind)
}

// verificationObjects reads the objects of a verification with the controller's own rights: no informer has all pods of the cluster.
type verificationObjects struct {
	server    *Server
	namespace string // "" is all
}

// read returns the objects, with the fields that decide.
func (o *verificationObjects) read(ctx context.Context) (*verification.Snapshot, error) {
	network, err := (&traceCluster{server: o.server}).Network(ctx)
	if err != nil {
		return nil, err
	}
	s := &verification.Snapshot{}
	read := []func(context.Context, *verification.Snapshot) error{o.readServices, o.readPolicies, o.readClusterPolicies}
	if network.Mode == config.ModeSubnet {
		read = read[:1] // the others do not apply
	}
	uids := map[string]types.UID{}
	if err := o.readNamespaces(ctx, s, uids); err != nil {
		return nil, err
	}
	if network.Mode == config.ModeMultitenant {
		if err := o.readVNIDs(ctx, s, uids); err != nil {
			return nil, err
		}
	}
	if err := o.readPods(ctx, s, network); err != nil {
		return nil, err
	}
	for _, f := range read {
		if err := f(ctx, s); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// each lists objects in pages, at most so many of them.
func each[T runtime.Object](ctx context.Context, kind string, most int, options metav1.ListOptions, list pager.ListPageFunc, add func(T)) error {
	p := pager.New(list)
	p.PageSize, p.FullListIfExpired = objectPage, false
	n := 0
	err := p.EachListItem(ctx, options, func(obj runtime.Object) error {
		if n++; n > most {
			return &tooManyObjectsError{kind, most}
		}
		if o, ok := obj.(T); ok {
			add(o)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("list %s: %w", kind, err)
	}
	return nil
}

// only returns the options of a list of the objects that are named as the namespace.
func (o *verificationObjects) only() metav1.ListOptions {
	if o.namespace == "" {
		return metav1.ListOptions{}
	}
	return metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, o.namespace).String()}
}

func (o *verificationObjects) readNamespaces(ctx context.Context, s *verification.Snapshot, uids map[string]types.UID) error {
	return each(ctx, "Namespaces", maxVerifiedNamespace, o.only(), func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return o.server.Kube.CoreV1().Namespaces().List(ctx, options)
	}, func(ns *corev1.Namespace) {
		uids[ns.Name] = ns.UID
		s.Namespaces = append(s.Namespaces, &corev1.Namespace{ObjectMeta: decisive(&ns.ObjectMeta)})
	})
}

// readVNIDs reads the VNIDs of namespaces. A NetNamespace of an earlier namespace of the same name is none.
func (o *verificationObjects) readVNIDs(ctx context.Context, s *verification.Snapshot, uids map[string]types.UID) error {
	s.VNIDs = map[string]uint32{}
	return each(ctx, "NetNamespaces", maxVerifiedNamespace, o.only(), func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return o.server.Network.NetworkV1().NetNamespaces().List(ctx, options)
	}, func(n *networkv1.NetNamespace) {
		parsed, err := config.ParseNetNamespace(n)
		if err == nil && (parsed.NamespaceUID == "" || parsed.NamespaceUID == uids[n.Name]) {
			s.VNIDs[n.Name] = uint32(parsed.VNID)
		}
	})
}

// readPods reads the pods with an address in the pod network, and in mode multitenant with a VNID.
func (o *verificationObjects) readPods(ctx context.Context, s *verification.Snapshot, network *config.Network) error {
	err := each(ctx, "Pods", diagnostics.MaxVerifiedPods, metav1.ListOptions{}, func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return o.server.Kube.CoreV1().Pods(o.namespace).List(ctx, options)
	}, func(p *corev1.Pod) {
		addr, err := netip.ParseAddr(p.Status.PodIP)
		inNetwork := err == nil && addr.Is4() && slices.ContainsFunc(network.ClusterNetworks, func(c config.ClusterNetwork) bool { return c.Prefix.Contains(addr) })
		_, hasVNID := s.VNIDs[p.Namespace]
		if inNetwork && oracle.IsSubject(p) && p.Spec.NodeName != "" && p.DeletionTimestamp == nil && (s.VNIDs == nil || hasVNID) {
			s.Pods = append(s.Pods, trimPod(p))
		}
	})
	verification.Sort(s.Pods)
	return err
}

// trimPod returns the fields that decide about connections.
func trimPod(p *corev1.Pod) *corev1.Pod {
	ports := func(containers []corev1.Container) (all []corev1.Container) {
		for _, c := range containers {
			all = append(all, corev1.Container{Ports: c.Ports, RestartPolicy: c.RestartPolicy})
		}
		return all
	}
	return &corev1.Pod{
		ObjectMeta: decisive(&p.ObjectMeta),
		Spec:       corev1.PodSpec{NodeName: p.Spec.NodeName, Containers: ports(p.Spec.Containers), InitContainers: ports(p.Spec.InitContainers)},
		Status:     corev1.PodStatus{Phase: p.Status.Phase, PodIP: p.Status.PodIP},
	}
}

// decisive returns the metadata that decides about connections, or shows that it changed.
func decisive(o *metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name, UID: o.UID, Generation: o.Generation, Labels: o.Labels}
}

func (o *verificationObjects) readServices(ctx context.Context, s *verification.Snapshot) error {
	return each(ctx, "Services", maxVerifiedPolicies, metav1.ListOptions{}, func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return o.server.Kube.CoreV1().Services(o.namespace).List(ctx, options)
	}, func(svc *corev1.Service) {
		if len(svc.Spec.Selector) == 0 {
			return
		}
		trimmed := verification.Service{Namespace: svc.Namespace, Selector: svc.Spec.Selector}
		for _, p := range svc.Spec.Ports {
			if p.TargetPort.Type == intstr.Int && p.TargetPort.IntVal > 0 {
				trimmed.Targets = append(trimmed.Targets, oracle.Port{Protocol: p.Protocol, Number: p.TargetPort.IntVal})
			}
		}
		s.Services = append(s.Services, trimmed)
	})
}

func (o *verificationObjects) readPolicies(ctx context.Context, s *verification.Snapshot) error {
	return each(ctx, "NetworkPolicies", maxVerifiedPolicies, metav1.ListOptions{}, func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return o.server.Kube.NetworkingV1().NetworkPolicies(o.namespace).List(ctx, options)
	}, func(p *networkingv1.NetworkPolicy) {
		s.Policies = append(s.Policies, &networkingv1.NetworkPolicy{ObjectMeta: decisive(&p.ObjectMeta), Spec: p.Spec})
	})
}

// readClusterPolicies reads ClusterNetworkPolicies, if the API server has them.
func (o *verificationObjects) readClusterPolicies(ctx context.Context, s *verification.Snapshot) error {
	err := each(ctx, "ClusterNetworkPolicies", maxVerifiedPolicies, metav1.ListOptions{}, func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return o.server.Policies.PolicyV1alpha2().ClusterNetworkPolicies().List(ctx, options)
	}, func(p *policyv1alpha2.ClusterNetworkPolicy) {
		s.ClusterPolicies = append(s.ClusterPolicies, &policyv1alpha2.ClusterNetworkPolicy{ObjectMeta: decisive(&p.ObjectMeta), Spec: p.Spec})
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
