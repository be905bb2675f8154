package pods

import (
	"context"
	"errors"
	"net/netip"

	"github.com/containernetworking/plugins/pkg/ns"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/ipam"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/veth"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/pkg/sdn/policy"
)

// Dependencies are the other components that the manager calls. All but BeforeRelease and PreviousVNIDs are required.
type Dependencies struct {
	Pods     Pods
	IPAM     IPAM
	Links    Links
	Switch   Switch
	Store    Store
	Policies Policies
	Compile  func(pipeline.Pod) pipeline.State
	Events   Events

	// BeforeRelease deletes what depends on the addresses of an attachment outside of this package. The addresses are not released if it fails.
	BeforeRelease func(ctx context.Context, a sandbox.Attachment) error

	PreviousVNIDs PreviousVNIDs // nil in mode subnet, in which all pods have the same VNID
}

func (d Dependencies) validate() error {
	if d.Pods == nil || d.IPAM == nil || d.Links == nil || d.Switch == nil || d.Store == nil || d.Policies == nil || d.Compile == nil || d.Events == nil {
		return errors.New("required dependency is nil")
	}
	return nil
}

// Pods finds pods in the Kubernetes API.
type Pods interface {
	// Cached returns the pod in the informer cache, or nil. The cache may be behind that of kubelet.
	Cached(namespace, name string) *corev1.Pod

	// Local returns the cached pods of this node. The caller must not modify them.
	Local() []*corev1.Pod

	// Get reads the pod from the API server. For a pod that does not exist it returns an apierrors.IsNotFound error. After any other
	// error the runtime repeats the request.
	Get(ctx context.Context, namespace, name string) (*corev1.Pod, error)
}

// IPAM allocates addresses (*ipam.IPAM).
type IPAM interface {
	Allocate(ctx context.Context, containerID, ifName string) ([]netip.Addr, error)
	Sync(ctx context.Context, addrs []netip.Addr) error
	Reserve(ctx context.Context, addr netip.Addr, containerID, ifName string) error
	Release(ctx context.Context, containerID, ifName string) error
	ReleaseLease(ctx context.Context, l ipam.Lease) error
	List() ([]ipam.Lease, error)
	Holder(addr netip.Addr) (ipam.Lease, bool)
	Probe(ctx context.Context) error
	Restore(ctx context.Context) (restored int, err error)
}

// Events emits Warning Events on pods and on the Node.
type Events interface {
	WarnPod(pod sandbox.Pod, reason, message string)
	WarnNode(reason, message string)
}

// Switch is the part of *native.Native that the manager uses directly, not by the store.
type Switch interface {
	ListPorts(ctx context.Context) ([]ovs.Port, error)
	AddPort(ctx context.Context, p ovs.Port) (ovs.Port, error)
	DeletePort(ctx context.Context, name string) error
	Missing(ctx context.Context, flows []*ovs.Flow) ([]*ovs.Flow, error)
	DumpMeters(ctx context.Context) ([]ovs.Meter, error)
}

// Store is the flow store (*flowstore.Store). It has sources of inputs.KindVNID, inputs.KindNamespaceUID, inputs.KindNamespaceVNID and
// inputs.KindPodPolicies.
type Store interface {
	Update(u flowstore.Update) []*flowstore.Commit
	Require(ctx context.Context, inputs ...flowstore.Input) error
	Value(input flowstore.Input) (value any, ok bool)
	Compiled(owner pipeline.Owner) *pipeline.State
}

// Policies installs the rules of network policies about pods of this node, and publishes inputs.PodPolicies (*networkpolicy.Policies).
type Policies interface {
	// Fetch makes the labels of the namespace known, and returns the UID of the Namespace; "" in mode subnet.
	Fetch(ctx context.Context, namespace string) (types.UID, error)
	Attach(ctx context.Context, owner pipeline.Owner, key policy.PodKey, pod pipeline.Pod, object *corev1.Pod) (done func(context.Context) error)
	Detach(owner pipeline.Owner) (done func(context.Context) error)
}

// Links creates, configures and deletes veth pairs (veth.Links).
type Links interface {
	// Open opens a pod's network namespace. It rejects the agent's own.
	Open(path string) (ns.NetNS, error)

	// Create creates the veth pair with one end in the pod's namespace, sets the alias of the host's end and sets it up. It replaces an
	// existing device of the host's name.
	Create(ctx context.Context, pod ns.NetNS, hostVeth string, i veth.Interface) error

	// SetUp sets the host's end up if it is down.
	SetUp(ctx context.Context, hostVeth string) error

	// RestoreSysctls restores the sysctls of the host's end, and returns the changes.
	RestoreSysctls(ctx context.Context, hostVeth string) (changes []string, err error)

	// Configure sets the pod's end up: address, routes, checksum offload. It also sets the loopback up.
	Configure(ctx context.Context, pod ns.NetNS, i veth.Interface) error

	// Update sets the MTU of both ends of the veth pair, and the MTU and destinations of the pod's routes, while they are in use. It returns
	// the changes. A pod's end with another MAC is not the pod's interface: that is an error, and nothing is changed.
	Update(ctx context.Context, pod ns.NetNS, hostVeth string, i veth.Interface) (changes []string, err error)

	// Verify compares the pod's end with the configuration, and returns the differences as an error.
	Verify(ctx context.Context, pod ns.NetNS, i veth.Interface) error

	// Find returns the alias of the host's device, and whether the device exists.
	Find(ctx context.Context, hostVeth string) (alias string, exists bool, err error)

	// SetAlias replaces the alias of the host's device, of at most 255 bytes.
	SetAlias(ctx context.Context, hostVeth, alias string) error

	// Delete deletes the veth pair. One that does not exist is not an error.
	Delete(ctx context.Context, hostVeth string) error

	// List returns the aliases of the host's devices by name. The alias of a device without one is empty.
	List(ctx context.Context) (map[string]string, error)
}

// podFlows installs and removes the flows of pods.
type podFlows interface {
	// ready returns when the inputs of the flows of the namespace's pods are available, with the UID of the Namespace; "" if unknown.
	ready(ctx context.Context, namespace string) (types.UID, error)

	// namespaceUID returns the UID of the Namespace whose VNID is in use; "" if unknown.
	namespaceUID(namespace string) types.UID

	// set returns when the pod's flows, and those of network policies that select it, are installed.
	set(ctx context.Context, p sandbox.Pod, object *corev1.Pod) error

	// setAsync returns at once; wait returns when the flows are installed.
	setAsync(ctx context.Context, p sandbox.Pod, object *corev1.Pod) (wait func(context.Context) error)

	// remove returns at once; wait returns when the flows are removed.
	remove(a sandbox.Attachment) (wait func(ctx context.Context) error)

	// podChanged applies the annotations of a pod in the Kubernetes API. It does not wait for the switch.
	podChanged(ctx context.Context, object *corev1.Pod)

	// recoverBandwidth sets the active limits of pods, before set or setAsync, to those that the meters of the switch enforce.
	recoverBandwidth(pods []sandbox.Pod, meters []ovs.Meter)

	// expected returns the flows that should be installed.
	expected(p sandbox.Pod) []*ovs.Flow
}
