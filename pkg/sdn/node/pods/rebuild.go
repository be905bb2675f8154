package pods

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/ipam"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
)

// errPortLost is the fault of a pod whose port is lost and not rebuilt yet.
var errPortLost = errors.New("OVSDB has lost the pod's port")

// unidentifiedError reports that the pod of a running sandbox is unknown.
type unidentifiedError struct {
	sandbox    string
	addrs      []netip.Addr  // of its leases
	candidates []sandbox.Pod // in the Kubernetes API; none or several
}

func (e *unidentifiedError) Error() string {
	cause := "neither its alias nor a running pod with that address in the Kubernetes API identifies its pod"
	if len(e.candidates) > 0 {
		names := make([]string, len(e.candidates))
		for i, p := range e.candidates {
			names[i] = p.Namespace + "/" + p.Name
		}
		cause = "it has no alias, and several running pods in the Kubernetes API have that address: " + strings.Join(names, ", ")
	}
	return fmt.Sprintf("sandbox %s with address %s has an interface but no port on the bridge, and %s; delete the pod, or stop the sandbox with `crictl stopp %s`",
		e.sandbox, sandbox.JoinAddrs(e.addrs), cause, e.sandbox)
}

// rebuild attaches a running sandbox whose port OVSDB has lost. Before Recover has ended, Recover adds the port and the flows. The
// caller holds the sandbox's lock.
func (m *Manager) rebuild(ctx context.Context, c inventory, a sandbox.Attachment) error {
	pod, unknown := m.identify(c, a)
	if unknown != nil {
		m.reportUnidentified(ctx, a, unknown)
		return nil
	}
	if m.previousVNIDs != nil && !m.exists(pod) {
		pod.NamespaceUID = unknownNamespace
	}
	m.setAttached(pod, errPortLost)
	err := m.repairPod(ctx, c, pod)
	if err != nil && m.recovered.Load() {
		m.reportNotRebuilt(ctx, pod, err)
	}
	return err
}

// identify returns the pod of a running sandbox: from the alias of its host veth, or, for an interface without one, from the
// Kubernetes API by the addresses of its leases.
func (m *Manager) identify(c inventory, a sandbox.Attachment) (sandbox.Pod, *unidentifiedError) {
	pod, aliased := c.aliased[a.HostVeth()]
	if !aliased {
		pod = sandbox.Pod{Attachment: a, Addrs: c.leased(a)}
	}
	if pod.Name != "" {
		return pod, nil
	}
	var candidates []sandbox.Pod
	for _, object := range c.local() {
		// Not by the mirror's annotation, which a user can write: the name is unknown.
		matches := pod.UID != "" && pod.UID == string(object.UID) || pod.UID == "" && m.runsWith(object, pod.Addrs)
		if !matches {
			continue
		}
		candidate := pod
		candidate.Namespace, candidate.Name, candidate.UID = object.Namespace, object.Name, string(config.PodUID(object))
		candidates = append(candidates, candidate)
	}
	if len(candidates) == 1 {
		return candidates[0], nil
	}
	slices.SortFunc(candidates, sandbox.Pod.Compare)
	return pod, &unidentifiedError{sandbox: a.Sandbox, addrs: pod.Addrs, candidates: candidates}
}

// runsWith reports whether the pod runs on this node with all the addresses, of which there is at least one.
func (m *Manager) runsWith(object *corev1.Pod, addrs []netip.Addr) bool {
	if len(addrs) == 0 || object.Spec.NodeName != m.NodeName || object.Spec.HostNetwork || hasEnded(object) {
		return false
	}
	for _, addr := range addrs {
		if !slices.ContainsFunc(object.Status.PodIPs, func(ip corev1.PodIP) bool { return ip.IP == addr.String() }) {
			return false
		}
	}
	return true
}

func hasEnded(object *corev1.Pod) bool {
	return object.Status.Phase == corev1.PodSucceeded || object.Status.Phase == corev1.PodFailed
}

// reportUnidentified reports a sandbox that can't be rebuilt, once for each cause. Its address stays allocated.
func (m *Manager) reportUnidentified(ctx context.Context, a sandbox.Attachment, unknown *unidentifiedError) {
	m.mu.Lock()
	known := m.unidentified[a] == unknown.Error()
	m.unidentified[a] = unknown.Error()
	m.mu.Unlock()
	if known {
		return
	}
	klog.FromContext(ctx).Error(unknown, "Failed to rebuild the port of a sandbox", "sandbox", a.Sandbox, "interface", a.IfName)
	for _, p := range unknown.candidates {
		m.events.WarnPod(p, eventreason.NetworkRebuildFailed, unknown.Error())
	}
	if len(unknown.candidates) == 0 {
		m.events.WarnNode(eventreason.NetworkRebuildFailed, unknown.Error())
	}
}

// reportNotRebuilt reports a pod whose port or flows could not be rebuilt, unless its host veth was deleted too. The next sweep tries again.
func (m *Manager) reportNotRebuilt(ctx context.Context, pod sandbox.Pod, err error) {
	if _, alive, findErr := m.links.Find(ctx, pod.HostVeth()); ctx.Err() != nil || findErr == nil && !alive {
		return
	}
	klog.FromContext(ctx).Error(err, "Failed to rebuild the port of a pod", "pod", klog.KRef(pod.Namespace, pod.Name), "port", pod.HostVeth(), "retryAfter", reconcilePeriod)
	if ovs.IsUnavailable(err) {
		return // the Node condition reports it; the pod is not the cause
	}
	m.events.WarnPod(pod, eventreason.NetworkRebuildFailed,
		fmt.Sprintf("pod %s/%s has no network: its port could not be rebuilt: %v; delete the pod if this lasts", pod.Namespace, pod.Name, err))
}

// maxConcurrentPorts bounds the ports that are added at the same time: vswitchd assigns the numbers of all new ports in one step.
const maxConcurrentPorts = 16

// addLostPorts adds the port of every recovered pod whose port is lost or has no number. Recover sets the flows.
func (m *Manager) addLostPorts(ctx context.Context) {
	var mu sync.Mutex
	var rebuilt []sandbox.Pod
	var all errgroup.Group
	all.SetLimit(maxConcurrentPorts)
	for _, pod := range m.Pods() {
		fault := m.fault(pod.Attachment)
		if pod.OFPort > 0 || ipam.IsConflict(fault) || m.outside(pod) != nil {
			continue
		}
		all.Go(func() error {
			// vswitchd has not added the port yet, failed to open the device, or has lost the port.
			number, err := m.recreatePort(ctx, pod)
			if err != nil {
				m.setAttached(pod, err)
				m.reportNotRebuilt(ctx, pod, err)
				return nil
			}
			pod.OFPort = number
			m.setAttached(pod, nil)
			if errors.Is(fault, errPortLost) {
				mu.Lock()
				defer mu.Unlock()
				rebuilt = append(rebuilt, pod)
			}
			return nil
		})
	}
	_ = all.Wait() // failures are reported one by one
	m.reportRebuilt(ctx, rebuilt)
}

// recreatePort adds the port of a running pod, with the number of the pod's address if that is free: the flows then need no change.
func (m *Manager) recreatePort(ctx context.Context, pod sandbox.Pod) (number int, err error) {
	if pod.OFPort, err = m.freeOFPort(ctx, pod.Addrs); err != nil {
		return 0, err
	}
	return m.addPort(ctx, pod)
}

// reportRebuilt reports rebuilt ports in one Event.
func (m *Manager) reportRebuilt(ctx context.Context, rebuilt []sandbox.Pod) {
	if len(rebuilt) == 0 {
		return
	}
	slices.SortFunc(rebuilt, sandbox.Pod.Compare)
	var names []string
	for _, p := range rebuilt[:min(len(rebuilt), maxPodsInEvent)] {
		names = append(names, p.Namespace+"/"+p.Name)
	}
	if len(rebuilt) > maxPodsInEvent {
		names = append(names, "…")
	}
	message := fmt.Sprintf("the bridge of node %s had lost the ports of %d running pods; rebuilt them with the same addresses: %s; find the program that deletes the ports, the bridge or the database of Open vSwitch",
		m.NodeName, len(rebuilt), strings.Join(names, ", "))
	klog.FromContext(ctx).Info("Rebuilt ports of running pods", "pods", len(rebuilt))
	m.events.WarnNode(eventreason.PodPortsRebuilt, message)
}

// reportRepaired reports the ports that were deleted, and rebuilt by repairPort since the last call.
func (m *Manager) reportRepaired(ctx context.Context) {
	m.mu.Lock()
	rebuilt := m.rebuilt
	m.rebuilt = nil
	m.mu.Unlock()
	m.reportRebuilt(ctx, rebuilt)
}

// maxPodsInEvent bounds the pods that an Event names.
const maxPodsInEvent = 10

// reportDeleted reports a pod whose host veth no longer exists, if the pod is running in the Kubernetes API and its network namespace still
// exists, unlike after a reboot or the end of the sandbox. The caller releases the pod's address.
func (m *Manager) reportDeleted(ctx context.Context, c inventory, pod sandbox.Pod) {
	running := slices.ContainsFunc(c.local(), func(o *corev1.Pod) bool {
		return sandbox.IsPod(o, pod.UID) && o.DeletionTimestamp == nil && m.runsWith(o, pod.Addrs)
	})
	if !running {
		return
	}
	netns, err := m.links.Open(pod.Netns)
	if err != nil {
		return
	}
	defer netns.Close()
	message := fmt.Sprintf("pod %s/%s has no network: its interface %s was deleted, in the pod or as %s on node %s, and its address %s is released; delete the pod",
		pod.Namespace, pod.Name, pod.IfName, pod.HostVeth(), m.NodeName, sandbox.JoinAddrs(pod.Addrs))
	klog.FromContext(ctx).Info("Interface of a running pod was deleted", "action", "delete the pod", "pod", klog.KRef(pod.Namespace, pod.Name), "sandbox", pod.Sandbox,
		"port", pod.HostVeth(), "addresses", pod.Addrs)
	m.events.WarnPod(pod, eventreason.NetworkInterfaceDeleted, message)
}
