package pods

import (
	"context"
	"errors"
	"net/netip"

	"github.com/containernetworking/plugins/pkg/ns"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/ipam"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/macvlan"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/podflows"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/veth"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// Dependencies are the other components that the manager calls. Those without a comment are required.
type Dependencies struct {
	Pods     Pods
	IPAM     IPAM
	Links    Links
	Macvlans Macvlans
	Switch   Switch
	Store    podflows.Store
	Compile  func(pipeline.Pod) pipeline.State
	Events   Events

	// Handlers and FetchNamespace are those of podflows.Dependencies.
	Handlers       []podflows.PodHandler
	FetchNamespace func(ctx context.Context, name string) (types.UID, error)

	// BeforeRelease deletes what depends on the addresses of an attachment outside of this package. The addresses are not released if it fails.
	BeforeRelease func(ctx context.Context, a sandbox.Attachment) error

	PreviousVNIDs PreviousVNIDs // nil in mode subnet, in which all pods have the same VNID
}

func (d Dependencies) validate() error {
	if d.Pods == nil || d.IPAM == nil || d.Links == nil || d.Macvlans == nil || d.Switch == nil || d.Store == nil || d.Compile == nil || d.Events == nil {
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

// Links creates, configures and deletes veth pairs (veth.Links).
type Links interface {
	// Open opens a pod's network namespace. It returns a *veth.NamespaceError for a path that is none, and for the agent's own.
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

// Macvlans creates and deletes macvlan interfaces in pods (macvlan.Links). Its errors that users can solve are *macvlan.ParentError.
type Macvlans interface {
	// DefaultParent returns the interface of the host's default route. inPodNetwork reports whether the pod network has an interface of the name.
	DefaultParent(ctx context.Context, inPodNetwork func(name string) bool) (string, error)

	// Parent returns the name if it is that of an interface of the host that can be a parent.
	Parent(ctx context.Context, name string, inPodNetwork func(name string) bool) (string, error)

	// Create creates the interface in the pod's namespace, in mode private, up and without an address, with routes to the parent's addresses by the gateway. It
	// replaces that of an interrupted Create.
	Create(ctx context.Context, pod ns.NetNS, i macvlan.Interface, parent string) error

	// Verify returns an error unless the interface exists as it was created.
	Verify(ctx context.Context, pod ns.NetNS, i macvlan.Interface) error

	// Delete deletes the interface. One that does not exist is not an error.
	Delete(ctx context.Context, pod ns.NetNS, i macvlan.Interface) error
}

// podFlows installs and removes the flows of pods (*podflows.Flows).
type podFlows interface {
	// Ready returns when the inputs of the flows of the namespace's pods are available, with the UID of the Namespace; "" if unknown.
	Ready(ctx context.Context, namespace string) (types.UID, error)

	// NamespaceUID returns the UID of the Namespace whose VNID is in use; "" if unknown.
	NamespaceUID(namespace string) types.UID

	// Set returns when the pod's flows, and those of its handlers, are installed.
	Set(ctx context.Context, p sandbox.Pod, object *corev1.Pod) error

	// SetAsync returns at once; wait returns when the flows are installed.
	SetAsync(ctx context.Context, p sandbox.Pod, object *corev1.Pod) (wait func(context.Context) error)

	// Remove returns at once; wait returns when the flows are removed.
	Remove(a sandbox.Attachment) (wait func(ctx context.Context) error)

	// PodChanged applies the annotations of a pod in the Kubernetes API. It does not wait for the switch.
	PodChanged(ctx context.Context, object *corev1.Pod)

	// RecoverBandwidth sets the active limits of pods, before Set or SetAsync, to those that the meters of the switch enforce.
	RecoverBandwidth(pods []sandbox.Pod, meters []ovs.Meter)

	// Expected returns the flows that should be installed.
	Expected(p sandbox.Pod) []*ovs.Flow
}
