package pods

import (
	"context"
	"errors"
	"net"
	"net/netip"

	"github.com/containernetworking/plugins/pkg/ns"
	corev1 "k8s.io/api/core/v1"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/ipam"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/policy"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/store"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/vnids"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// Seams is what the manager works with.
type Seams struct {
	Pods     Pods
	IPAM     IPAM
	Links    Links // Kernel, outside tests
	Switch   Switch
	Flows    Flows
	Policies Policies
	Compile  func(pipeline.Pod) pipeline.State
	Events   Events
}

func (s Seams) validate() error {
	if s.Pods == nil || s.IPAM == nil || s.Links == nil || s.Switch == nil || s.Flows == nil || s.Policies == nil || s.Compile == nil || s.Events == nil {
		return errors.New("a seam is missing")
	}
	return nil
}

// Pods finds pods in the Kubernetes API.
type Pods interface {
	// Cached returns the pod as it was last heard of, nil if it was not. It may be late: kubelet has its own watch.
	Cached(namespace, name string) *corev1.Pod

	// Local returns the cached pods of this node. The caller must not modify them.
	Local() []*corev1.Pod

	// Get asks the API server. A pod that is not there is an apierrors.IsNotFound error. Every other error, such as a server
	// that does not answer, makes the runtime come again.
	Get(ctx context.Context, namespace, name string) (*corev1.Pod, error)
}

// IPAM gives out addresses (*ipam.IPAM).
type IPAM interface {
	Allocate(ctx context.Context, containerID, ifName string) ([]netip.Addr, error)
	Sync(ctx context.Context, addrs []netip.Addr) error
	Reserve(ctx context.Context, addr netip.Addr, containerID, ifName string) error
	Release(ctx context.Context, containerID, ifName string) error
	Discard(ctx context.Context, l ipam.Lease) error
	List() ([]ipam.Lease, error)
	Holder(addr netip.Addr) (ipam.Lease, bool)
	Probe(ctx context.Context) error
	Restore(ctx context.Context) (restored int, err error)
}

// Events tells users what is wrong, where they look: warnings on the objects that it concerns.
type Events interface {
	WarnPod(pod Pod, reason, message string)
	WarnNode(reason, message string)
}

// Reasons of Events. Alerts match them: they don't change.
const (
	ReasonAttachFailed  = "NetworkAttachFailed" // on the pod: ADD failed; the runtime tries again
	ReasonCheckFailed   = "NetworkCheckFailed"  // on the pod: CHECK found it not as it was made, or not as the runtime remembers it
	ReasonAddressInUse  = "AddressInUseTwice"   // on both pods
	ReasonNoFlows       = "NetworkFlowsRefused" // on the pod: it has no network
	ReasonNoFreeAddress = "NoFreeAddress"       // on the node

	// On the pod, or on the node where the pod is unknown: a living sandbox has no port. Its address stays allocated.
	ReasonRebuildFailed = "NetworkRebuildFailed"

	// On the pod: its interface was deleted, and its address released.
	ReasonInterfaceDeleted = "NetworkInterfaceDeleted"

	// On the node: ports that the bridge had lost were rebuilt.
	ReasonPortsRebuilt = "PodPortsRebuilt"

	ReasonAddressStorage = "AddressStorageFailing" // on the node: the disk is full or read-only

	// On the node: leases of running pods were deleted, and are restored.
	ReasonLeasesRestored = "AddressLeasesRestored"
)

// Switch is the part of *ovs.Native that pods need, beside the store.
type Switch interface {
	ListPorts(ctx context.Context) ([]ovs.Port, error)
	AddPort(ctx context.Context, p ovs.Port) (ovs.Port, error)
	DeletePort(ctx context.Context, name string) error
	Missing(ctx context.Context, flows []*ovs.Flow) ([]*ovs.Flow, error)
}

// Flows holds desired state, which depends on the namespace's VNID (*vnids.VNIDs).
type Flows interface {
	Fetch(ctx context.Context, namespace string) error
	Of(namespace string) (config.VNID, bool)
	Set(namespace string, owner pipeline.Owner, d vnids.Dependent) *store.Commit
	Delete(pipeline.Owner) *store.Commit
}

// Policies holds the rules of network policies about pods of this node (*policies.Policies).
type Policies interface {
	Fetch(ctx context.Context, namespace string) error
	Attach(ctx context.Context, owner pipeline.Owner, key policy.PodKey, pod pipeline.Pod, object *corev1.Pod) (done func(context.Context) error)
	Detach(owner pipeline.Owner) (done func(context.Context) error)
	Of(key policy.PodKey) pipeline.PodPolicies
}

// Links makes and removes network devices.
type Links interface {
	// Open opens a pod's network namespace. The agent's own is refused.
	Open(path string) (ns.NetNS, error)

	// Create makes the veth pair with one end in the pod's namespace, gives the host's end its alias and sets it up. A pair
	// that an earlier attempt left under the host's name is replaced.
	Create(ctx context.Context, pod ns.NetNS, hostVeth string, i Interface) error

	// Configure sets the pod's end up: address, routes, checksum offload. It also sets the loopback up.
	Configure(ctx context.Context, pod ns.NetNS, i Interface) error

	// Renew gives both ends of the veth pair, and the routes of the pod's end, another MTU while they are in use, makes the routes follow
	// the cluster network, and says what it had to change. A pod's end with another MAC is somebody else's: that is an
	// error, and nothing is changed.
	Renew(ctx context.Context, pod ns.NetNS, hostVeth string, i Interface) (changes []string, err error)

	// Verify compares the pod's end with what Configure made, and says what differs.
	Verify(ctx context.Context, pod ns.NetNS, i Interface) error

	// Find returns the alias of the host's device, and whether the device exists.
	Find(ctx context.Context, hostVeth string) (alias string, exists bool, err error)

	// SetAlias replaces the alias of the host's device, of at most 255 bytes.
	SetAlias(ctx context.Context, hostVeth, alias string) error

	// Delete removes the veth pair. One that is not there is no error.
	Delete(ctx context.Context, hostVeth string) error

	// List returns the aliases of the host's devices by name. A device without an alias has the empty one.
	List(ctx context.Context) (map[string]string, error)
}

// Interface is how the pod's end of the veth pair looks.
type Interface struct {
	Name        string
	MAC         net.HardwareAddr
	MTU         int            // bytes, of both ends
	RouteMTU    int            // bytes, of all routes; 0: they have none of their own
	Addrs       []netip.Prefix // with the length of the node's subnet
	Routes      []Route
	NoChecksums bool   // TX checksum offload is switched off
	HostAlias   string // of the host's end; set by Create only
}

// Route is a route in the pod.
type Route struct {
	To  netip.Prefix
	Via netip.Addr // zero: on-link
}
