package pods

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
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
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/cniargs"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/ipam"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/podinterface"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
)

// Add attaches the interface. It returns when the pod's flows are installed. When it fails, or its context ends, it
// removes all that it created.
func (m *Manager) Add(ctx context.Context, req *cniserver.Request) (*current.Result, error) {
	logger := klog.FromContext(ctx).WithValues("sandbox", req.ContainerID, "interface", req.IfName)
	ctx = klog.NewContext(ctx, logger)
	start, before := time.Now(), m.health.snapshot()
	pod, err := m.add(ctx, req)
	m.recordResult(before, err, true)
	if err != nil {
		logger.Error(err, "Failed to attach pod", "args", req.Args)
		if pod.Name != "" && ctx.Err() == nil {
			m.events.WarnPod(pod, eventreason.NetworkAttachFailed, err.Error())
		}
		return nil, asCNIError(err)
	}
	logger.V(1).Info("Attached pod", "pod", klog.KRef(pod.Namespace, pod.Name), "addresses", pod.Addrs,
		"ofport", pod.OFPort, "duration", time.Since(start))
	return m.Result(pod), nil
}

// add returns the pod with an error too, if it was identified.
func (m *Manager) add(ctx context.Context, req *cniserver.Request) (sandbox.Pod, error) {
	if err := m.requireRecovered(); err != nil {
		return sandbox.Pod{}, err
	}
	args, err := cniargs.Parse(req.Args)
	if err != nil {
		return sandbox.Pod{}, err
	}
	a := sandbox.Attachment{Sandbox: req.ContainerID, IfName: req.IfName}
	unlock, err := m.sandboxes.Lock(ctx, a.Sandbox)
	if err != nil {
		return sandbox.Pod{}, fmt.Errorf("wait for another request of sandbox %s: %w", a.Sandbox, err)
	}
	defer unlock()
	if old, ok := m.get(a); ok {
		return sandbox.Pod{}, types.NewError(types.ErrInvalidEnvironmentVariables,
			fmt.Sprintf("sandbox %s already has %s with %v; call DEL before ADD", a.Sandbox, a.IfName, old.Addrs), "")
	}

	object, err := m.lookUpPod(ctx, args)
	if err != nil {
		return sandbox.Pod{}, err
	}
	pod := sandbox.Pod{
		Attachment: a,
		Netns:      req.Netns,
		Namespace:  object.Namespace,
		Name:       object.Name,
		UID:        string(config.PodUID(object)),
		Version:    object.ResourceVersion,
	}
	if args.Sandbox != "" && args.Sandbox != a.Sandbox {
		return pod, cniargs.Invalid("K8S_POD_INFRA_CONTAINER_ID is %q, CNI_CONTAINERID is %q", args.Sandbox, a.Sandbox)
	}
	if err := requireFirstPlugin(req); err != nil {
		return pod, err
	}
	netns, err := m.links.Open(req.Netns)
	if err != nil {
		return pod, types.NewError(types.ErrInvalidNetNS, "invalid CNI_NETNS", err.Error())
	}
	defer netns.Close()
	if pod.Macvlan, err = m.macvlanParent(ctx, args, object); err != nil {
		return pod, err
	}
	if pod.NamespaceUID, err = m.flows.Ready(ctx, pod.Namespace); err != nil {
		return pod, err
	}
	if pod.Addrs, err = m.allocateUnused(ctx, a); err != nil {
		return pod, err
	}
	// A failure after this point must be cleaned up.
	if err := m.attach(ctx, netns, &pod, object); err != nil {
		if cleanupErr := m.cleanUp(ctx, pod); cleanupErr != nil {
			err = fmt.Errorf("%w; clean up: %w", err, cleanupErr)
		}
		return pod, err
	}
	m.setAttached(pod, nil)
	m.reportMacvlan(ctx, pod, sandbox.CachedObject(m.pods, pod)) // the annotation may have changed since it was read
	return pod, nil
}

// requireFirstPlugin rejects a chained call after another plugin, whose result Add would discard.
func requireFirstPlugin(req *cniserver.Request) error {
	config, err := cniserver.ParseConfig(req.Config)
	if err != nil {
		return err
	}
	if config.RawPrevResult != nil {
		return types.NewError(types.ErrUnsupportedField,
			"prevResult is set; ovsdn-cni creates the pod's interface and must be the first plugin of the list", "")
	}
	return nil
}

// lookUpPod returns the pod in the Kubernetes API. It requires the UID that the runtime passed, since a new pod can have the name.
func (m *Manager) lookUpPod(ctx context.Context, args cniargs.Args) (*corev1.Pod, error) {
	if pod := m.pods.Cached(args.Namespace, args.Name); pod != nil && args.Matches(pod) {
		return pod, nil
	}
	pod, err := m.pods.Get(ctx, args.Namespace, args.Name)
	if apierrors.IsNotFound(err) {
		return nil, types.NewError(types.ErrUnknownContainer,
			fmt.Sprintf("pod %s/%s of node %s does not exist in the Kubernetes API; it may have been deleted",
				args.Namespace, args.Name, m.NodeName), err.Error())
	}
	if err != nil {
		return nil, types.NewError(types.ErrTryAgainLater,
			fmt.Sprintf("node %s failed to get pod %s/%s from the Kubernetes API", m.NodeName, args.Namespace, args.Name), err.Error())
	}
	if !args.Matches(pod) {
		return nil, types.NewError(types.ErrUnknownContainer,
			fmt.Sprintf("pod %s/%s on node %s was replaced: UID of the sandbox is %s, UID in the Kubernetes API is %s",
				args.Namespace, args.Name, m.NodeName, args.UID, pod.UID), "")
	}
	return pod, nil
}

// allocateUnused allocates addresses that no attached pod has. An address of an attached pod without a lease is reserved for that pod.
func (m *Manager) allocateUnused(ctx context.Context, a sandbox.Attachment) ([]netip.Addr, error) {
	for range maxConflicts {
		addrs, err := m.allocate(ctx, a)
		if err != nil {
			return nil, err
		}
		user, used := m.otherPodWith(a, addrs)
		if !used {
			return addrs, nil
		}
		if err := m.ipam.Release(ctx, a.Sandbox, a.IfName); err != nil {
			return nil, &diskError{err}
		}
		if err := m.reserveFor(ctx, user); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("allocate an address: %d free addresses were in use by pods without a lease; retry", maxConflicts)
}

// reserveFor reserves the addresses of an attached pod that has no lease.
func (m *Manager) reserveFor(ctx context.Context, user sandbox.Pod) error {
	klog.FromContext(ctx).Info("Attached pod has no IP lease; reserving its addresses", "pod", klog.KRef(user.Namespace, user.Name), "addresses", user.Addrs)
	unlock, ok := m.sandboxes.TryLock(user.Sandbox)
	if !ok {
		return nil // another request of the sandbox is in progress
	}
	defer unlock()
	if user, attached := m.get(user.Attachment); attached {
		_, err := m.reserve(ctx, user)
		return err
	}
	return nil
}

// maxConflicts bounds the attempts to allocate an unused address. More than one conflict means that another program deletes leases.
const maxConflicts = 10

// allocate allocates addresses. Leases of an interrupted ADD or DEL of the same attachment are released first. If no address is free, it
// releases those of deleted sandboxes and tries again.
func (m *Manager) allocate(ctx context.Context, a sandbox.Attachment) ([]netip.Addr, error) {
	addrs, err := m.ipam.Allocate(ctx, a.Sandbox, a.IfName)
	if ipam.IsAllocated(err) {
		if err := m.remove(ctx, a, ""); err != nil {
			return nil, fmt.Errorf("clean up after an earlier request: %w", err)
		}
		addrs, err = m.ipam.Allocate(ctx, a.Sandbox, a.IfName)
	}
	if ipam.IsFull(err) {
		m.releaseStale(ctx)
		addrs, err = m.ipam.Allocate(ctx, a.Sandbox, a.IfName)
	}
	switch {
	case ipam.IsFull(err):
		m.events.WarnNode(eventreason.NoFreeAddress, fmt.Sprintf("node %s: %v; delete pods from it, or reduce kubelet's maxPods", m.NodeName, err))
		return nil, types.NewError(types.ErrTryAgainLater,
			fmt.Sprintf("node %s has no free address; delete pods from it, or reduce kubelet's maxPods", m.NodeName), err.Error())
	case err != nil && ctx.Err() == nil:
		return nil, &diskError{err}
	}
	return addrs, err
}

// attach creates the interface and the port, syncs the lease to the disk and installs the flows, all in parallel. The flows are installed for
// the requested port number before the port exists: vswitchd is slow to accept flows while it adds a port.
func (m *Manager) attach(ctx context.Context, netns ns.NetNS, pod *sandbox.Pod, object *corev1.Pod) error {
	var err error
	if pod.OFPort, err = m.freeOFPort(ctx, pod.Addrs); err != nil {
		return err
	}
	assigned := 0
	all, allCtx := errgroup.WithContext(ctx)
	all.Go(func() error {
		if err := m.ipam.Sync(allCtx, pod.Addrs); err != nil && allCtx.Err() == nil {
			return &diskError{err}
		}
		return allCtx.Err()
	})
	all.Go(func() (err error) {
		assigned, err = m.createInterfaces(allCtx, netns, *pod, object)
		return err
	})
	if pod.OFPort != 0 {
		all.Go(func() error { return m.install(allCtx, *pod, object) })
	}
	if err := all.Wait(); err != nil {
		return err
	}
	if assigned != pod.OFPort {
		pod.OFPort = assigned
		if err := m.install(ctx, *pod, object); err != nil {
			return err
		}
	}
	return ctx.Err() // after the timeout the runtime does not receive the result
}

func (m *Manager) install(ctx context.Context, pod sandbox.Pod, object *corev1.Pod) error {
	if err := m.flows.Set(ctx, pod, object); err != nil {
		return fmt.Errorf("install the pod's flows: %w", err)
	}
	return nil
}

// createInterfaces creates the veth pair, and adds the port while it configures the pod's end and creates its macvlan interface. It returns the OpenFlow port number.
func (m *Manager) createInterfaces(ctx context.Context, netns ns.NetNS, pod sandbox.Pod, object *corev1.Pod) (number int, err error) {
	i := m.InterfaceConfig(pod)
	i.HostAlias = pod.Alias()
	if err := m.links.Create(ctx, netns, pod.HostVeth(), i); err != nil {
		return 0, fmt.Errorf("create the veth pair: %w", err)
	}
	both, bothCtx := errgroup.WithContext(ctx)
	both.Go(func() error {
		if err := m.links.Configure(bothCtx, netns, i); err != nil {
			return fmt.Errorf("configure %s in %s: %w", i.Name, pod.Netns, err)
		}
		return m.createMacvlan(bothCtx, netns, pod, object)
	})
	both.Go(func() (err error) {
		number, err = m.addPort(bothCtx, pod)
		return err
	})
	err = both.Wait()
	return number, err
}

// addPort adds the port with the pod's number, or with any number if another port has it. If AddPort replaced a port, vswitchd may have set the
// interface down: on the userspace datapath it writes the flags of the previous device with the name when it closes that
// (netdev_restore_flags in lib/netdev.c).
func (m *Manager) addPort(ctx context.Context, pod sandbox.Pod) (number int, err error) {
	wanted := pod.Port()
	wanted.OFPort = pod.OFPort
	port, err := m.bridge.AddPort(ctx, wanted)
	if ovs.IsPortError(err) && wanted.OFPort != 0 {
		wanted.OFPort = 0
		port, err = m.bridge.AddPort(ctx, wanted)
	}
	if err != nil {
		return 0, fmt.Errorf("add the port: %w", err)
	}
	return port.OFPort, m.links.SetUp(ctx, pod.HostVeth())
}

// freeOFPort returns the port number to request, or 0 if another port has it: one of another program, or one from a time when the node had
// other subnets. Flows may use the number before the port exists: no other ADD requests it while the pod has the addresses.
func (m *Manager) freeOFPort(ctx context.Context, addrs []netip.Addr) (int, error) {
	number := podinterface.OFPort(addrs[0], m.Subnets)
	if number == 0 {
		return 0, nil
	}
	ports, err := m.bridge.ListPorts(ctx)
	if err != nil {
		return 0, fmt.Errorf("find a free OpenFlow port number: %w", err)
	}
	if slices.ContainsFunc(ports, func(p ovs.Port) bool { return p.OFPort == number }) {
		return 0, nil
	}
	return number, nil
}

// cleanUp removes all that a failed ADD created, with a separate timeout. What it fails to remove retains its lease until the
// runtime's DEL, or the next reconciliation, removes it.
func (m *Manager) cleanUp(ctx context.Context, pod sandbox.Pod) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), m.cleanupTimeout)
	defer cancel()
	netns := ""
	if pod.Macvlan != "" {
		netns = pod.Netns
	}
	return m.remove(ctx, pod.Attachment, netns)
}
