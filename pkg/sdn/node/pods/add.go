package pods

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/ns"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/ipam"
)

// Annotations by which kubelet ties a static pod to its mirror in the API, which has another UID: both hold the static
// pod's UID. (k8s.io/kubernetes/pkg/kubelet/types, ConfigHashAnnotationKey and ConfigMirrorAnnotationKey.)
const (
	annotationConfigHash   = "kubernetes.io/config.hash"
	annotationConfigMirror = "kubernetes.io/config.mirror"
)

// Add attaches the interface. It returns when the pod's flows are on the switch. When it fails, or its context ends, it
// leaves nothing behind.
func (m *Manager) Add(ctx context.Context, req *cniserver.Request) (*current.Result, error) {
	logger := klog.FromContext(ctx).WithValues("sandbox", req.ContainerID, "interface", req.IfName)
	ctx = klog.NewContext(ctx, logger)
	start, asked := time.Now(), m.health.asking()
	pod, err := m.add(ctx, req)
	m.learn(asked, err, true)
	if err != nil {
		logger.Error(err, "Could not attach the pod", "args", req.Args)
		if pod.Name != "" && ctx.Err() == nil {
			m.events.WarnPod(pod, ReasonAttachFailed, err.Error())
		}
		return nil, asCNIError(err)
	}
	logger.V(1).Info("Pod attached", "pod", klog.KRef(pod.Namespace, pod.Name), "addresses", pod.Addrs,
		"ofport", pod.OFPort, "duration", time.Since(start))
	return m.result(pod), nil
}

// add returns the pod also with an error, once it is known.
func (m *Manager) add(ctx context.Context, req *cniserver.Request) (Pod, error) {
	if err := m.starting(); err != nil {
		return Pod{}, err
	}
	args, err := parseArgs(req.Args)
	if err != nil {
		return Pod{}, err
	}
	a := Attachment{req.ContainerID, req.IfName}
	unlock, err := m.sandboxes.lock(ctx, a.Sandbox)
	if err != nil {
		return Pod{}, fmt.Errorf("wait for another request of sandbox %s: %w", a.Sandbox, err)
	}
	defer unlock()
	if old, ok := m.get(a); ok {
		return Pod{}, types.NewError(types.ErrInvalidEnvironmentVariables,
			fmt.Sprintf("sandbox %s already has %s with %v: DEL must come before another ADD", a.Sandbox, a.IfName, old.Addrs), "")
	}

	object, err := m.object(ctx, args)
	if err != nil {
		return Pod{}, err
	}
	pod := Pod{
		Attachment: a,
		Netns:      req.Netns,
		Namespace:  object.Namespace,
		Name:       object.Name,
		UID:        string(object.UID),
	}
	if args.sandbox != "" && args.sandbox != a.Sandbox {
		return pod, invalidArgs("K8S_POD_INFRA_CONTAINER_ID is %q, CNI_CONTAINERID is %q", args.sandbox, a.Sandbox)
	}
	if err := checkFirst(req); err != nil {
		return pod, err
	}
	netns, err := m.links.Open(req.Netns)
	if err != nil {
		return pod, types.NewError(types.ErrInvalidNetNS, "CNI_NETNS can't be used", err.Error())
	}
	defer netns.Close()
	if err := m.flows.ready(ctx, pod.Namespace); err != nil {
		return pod, err
	}
	if pod.Addrs, err = m.allocate(ctx, a); err != nil {
		return pod, err
	}
	// From here on there is something to undo.
	if err := m.attach(ctx, netns, &pod, object); err != nil {
		if undoErr := m.undo(ctx, a); undoErr != nil {
			err = fmt.Errorf("%w; and could not undo it: %w", err, undoErr)
		}
		return pod, err
	}
	m.remember(pod, nil)
	return pod, nil
}

// checkFirst refuses to follow another plugin in the list: what that made could not be kept.
func checkFirst(req *cniserver.Request) error {
	config, err := cniserver.ParseConfig(req.Config)
	if err != nil {
		return err
	}
	if config.RawPrevResult != nil {
		return types.NewError(types.ErrUnsupportedField,
			"there is a prevResult: ovsdn-cni makes the pod's interface and must be the first plugin of the list", "")
	}
	return nil
}

// object looks the pod up, and makes sure that it is the one that the runtime means: a name can have a new owner.
func (m *Manager) object(ctx context.Context, args kubeArgs) (*corev1.Pod, error) {
	if pod := m.pods.Cached(args.namespace, args.name); pod != nil && args.mean(pod) {
		return pod, nil
	}
	pod, err := m.pods.Get(ctx, args.namespace, args.name)
	if apierrors.IsNotFound(err) {
		return nil, types.NewError(types.ErrUnknownContainer,
			fmt.Sprintf("pod %s/%s, which node %s is to run, is not in the Kubernetes API: it may have been deleted meanwhile",
				args.namespace, args.name, m.NodeName), err.Error())
	}
	if err != nil {
		return nil, types.NewError(types.ErrTryAgainLater,
			fmt.Sprintf("node %s can't look up pod %s/%s in the Kubernetes API", m.NodeName, args.namespace, args.name), err.Error())
	}
	if !args.mean(pod) {
		return nil, types.NewError(types.ErrUnknownContainer,
			fmt.Sprintf("pod %s/%s on node %s has been replaced: the sandbox is for the pod with UID %s, the Kubernetes API has %s",
				args.namespace, args.name, m.NodeName, args.uid, pod.UID), "")
	}
	return pod, nil
}

// allocate takes addresses. Those that a living pod turns out to have, though the disk says nothing of it, are marked as that
// pod's, and others are taken.
func (m *Manager) allocate(ctx context.Context, a Attachment) ([]netip.Addr, error) {
	for range maxConflicts {
		addrs, err := m.takeAddrs(ctx, a)
		if err != nil {
			return nil, err
		}
		user, used := m.userOf(a, addrs)
		if !used {
			return addrs, nil
		}
		if err := m.ipam.Release(ctx, a.Sandbox, a.IfName); err != nil {
			return nil, &diskError{err}
		}
		if err := m.claimFor(ctx, user); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("addresses that were free turned out to be in use, %d times", maxConflicts)
}

// claimFor marks addresses that another sandbox turned out to have.
func (m *Manager) claimFor(ctx context.Context, user Pod) error {
	klog.FromContext(ctx).Info("An address that a pod has was not marked as taken", "pod", klog.KRef(user.Namespace, user.Name), "addresses", user.Addrs)
	unlock, ok := m.sandboxes.try(user.Sandbox)
	if !ok {
		return nil // it is on its way out
	}
	defer unlock()
	if user, attached := m.get(user.Attachment); attached {
		_, err := m.claim(ctx, user)
		return err
	}
	return nil
}

// maxConflicts bounds the search. More than one is a disk that somebody else writes to.
const maxConflicts = 10

// takeAddrs takes addresses. If the attachment has some though it is not attached, an ADD or DEL died: it is removed first. If there are
// none, what dead sandboxes hold is swept up first.
func (m *Manager) takeAddrs(ctx context.Context, a Attachment) ([]netip.Addr, error) {
	addrs, err := m.ipam.Allocate(ctx, a.Sandbox, a.IfName)
	if ipam.IsHeld(err) {
		if err := m.remove(ctx, a); err != nil {
			return nil, fmt.Errorf("remove what an earlier request left: %w", err)
		}
		addrs, err = m.ipam.Allocate(ctx, a.Sandbox, a.IfName)
	}
	if ipam.IsFull(err) {
		m.sweepForRoom(ctx)
		addrs, err = m.ipam.Allocate(ctx, a.Sandbox, a.IfName)
	}
	switch {
	case ipam.IsFull(err):
		m.events.WarnNode(ReasonNoFreeAddress, err.Error())
		return nil, types.NewError(types.ErrTryAgainLater,
			fmt.Sprintf("node %s has no free address: delete pods from it, or give it a larger subnet", m.NodeName), err.Error())
	case err != nil && ctx.Err() == nil:
		return nil, &diskError{err}
	}
	return addrs, err
}

// attach makes the device and the port, while the disk takes note of the address and the switch gets the flows, for the number that
// the port asks for: vswitchd is slow to take flows once it has a new port.
func (m *Manager) attach(ctx context.Context, netns ns.NetNS, pod *Pod, object *corev1.Pod) error {
	var err error
	if pod.OFPort, err = m.freeNumber(ctx, pod.Addrs); err != nil {
		return err
	}
	given := 0
	all, allCtx := errgroup.WithContext(ctx)
	all.Go(func() error {
		if err := m.ipam.Sync(allCtx, pod.Addrs); err != nil && allCtx.Err() == nil {
			return &diskError{err}
		}
		return allCtx.Err()
	})
	all.Go(func() (err error) {
		given, err = m.plug(allCtx, netns, *pod)
		return err
	})
	if pod.OFPort != 0 {
		all.Go(func() error { return m.install(allCtx, *pod, object) })
	}
	if err := all.Wait(); err != nil {
		return err
	}
	if given != pod.OFPort {
		pod.OFPort = given
		if err := m.install(ctx, *pod, object); err != nil {
			return err
		}
	}
	return ctx.Err() // nobody may be left to hear of the success
}

func (m *Manager) install(ctx context.Context, pod Pod, object *corev1.Pod) error {
	if err := m.flows.set(ctx, pod, object); err != nil {
		return fmt.Errorf("install the pod's flows: %w", err)
	}
	return nil
}

// plug makes the device and the port. The port gets its number, which is returned, while the pod's end is being configured.
func (m *Manager) plug(ctx context.Context, netns ns.NetNS, pod Pod) (number int, err error) {
	i := m.network(pod)
	i.HostAlias = pod.alias()
	if err := m.links.Create(ctx, netns, pod.HostVeth(), i); err != nil {
		return 0, fmt.Errorf("create the veth pair: %w", err)
	}
	both, bothCtx := errgroup.WithContext(ctx)
	both.Go(func() error {
		if err := m.links.Configure(bothCtx, netns, i); err != nil {
			return fmt.Errorf("configure %s in %s: %w", i.Name, pod.Netns, err)
		}
		return nil
	})
	both.Go(func() (err error) {
		number, err = m.addPort(bothCtx, pod)
		return err
	})
	err = both.Wait()
	return number, err
}

// addPort adds the port with the pod's number, or with any if that was taken meanwhile.
func (m *Manager) addPort(ctx context.Context, pod Pod) (number int, err error) {
	wanted := pod.port()
	wanted.OFPort = pod.OFPort
	port, err := m.bridge.AddPort(ctx, wanted)
	if ovs.IsPortError(err) && wanted.OFPort != 0 {
		wanted.OFPort = 0
		port, err = m.bridge.AddPort(ctx, wanted)
	}
	if err != nil {
		return 0, fmt.Errorf("add the port: %w", err)
	}
	return port.OFPort, nil
}

// undo removes what a failed ADD made. The runtime's time may be over, so it has its own. What it can't remove, the runtime's
// DEL or the sweep at the agent's start does: the address file stays until then.
func (m *Manager) undo(ctx context.Context, a Attachment) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.undoTime)
	defer cancel()
	return m.remove(ctx, a)
}

// result is the answer to ADD, in the newest form; the plugin converts it.
func (m *Manager) result(pod Pod) *current.Result {
	i := m.network(pod)
	result := &current.Result{
		CNIVersion: current.ImplementedSpecVersion,
		Interfaces: []*current.Interface{
			{Name: pod.HostVeth(), Mtu: i.MTU},
			{Name: pod.IfName, Mac: i.MAC.String(), Mtu: i.MTU, Sandbox: pod.Netns},
		},
	}
	for _, addr := range i.Addrs {
		result.IPs = append(result.IPs, &current.IPConfig{
			Interface: current.Int(1), // index in Interfaces
			Address:   ipNet(addr),
			Gateway:   config.Gateway(addr).AsSlice(),
		})
	}
	for _, r := range i.Routes {
		route := &types.Route{Dst: ipNet(r.To), MTU: i.RouteMTU}
		if r.Via.IsValid() {
			route.GW = r.Via.AsSlice()
		}
		result.Routes = append(result.Routes, route)
	}
	return result
}
