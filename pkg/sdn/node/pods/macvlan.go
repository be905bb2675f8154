package pods

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/pkg/ns"
	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/cniargs"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/macvlan"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/veth"
)

// ErrMacvlanRefused is the error code of ADD when the pod can't have the macvlan interface that it asks for.
const ErrMacvlanRefused uint = 102

// macvlanParent returns the parent of the macvlan interface that the pod asks for; "" if it asks for none. The object must have the UID that the runtime passed: a pod
// of the same name may be privileged.
func (m *Manager) macvlanParent(ctx context.Context, args cniargs.Args, object *corev1.Pod) (string, error) {
	value, asks := config.MacvlanAnnotation(object)
	if !asks {
		return "", nil
	}
	if err := config.ValidateMacvlan(object); err != nil {
		return "", refuseMacvlan(object, err)
	}
	if args.UID == "" {
		return "", refuseMacvlan(object, errors.New("the container runtime does not pass the pod's UID (K8S_POD_UID); update it"))
	}
	if uid := string(config.PodUID(object)); args.UID != uid {
		return "", refuseMacvlan(object, fmt.Errorf("the pod has UID %s, and the sandbox UID %s; delete the pod so that it is created again", uid, args.UID))
	}
	inPodNetwork, err := m.podNetworkDevices(ctx)
	if err != nil {
		return "", err
	}
	var parent string
	if value == config.MacvlanOnDefaultRoute {
		parent, err = m.macvlans.DefaultParent(ctx, inPodNetwork)
	} else {
		parent, err = m.macvlans.Parent(ctx, value, inPodNetwork)
	}
	return parent, asMacvlanError(object, err)
}

// podNetworkDevices returns a function that reports whether the host's interface of that name belongs to the pod network: the bridge, its ports, host veths that are no
// ports yet, and Open vSwitch's devices of its datapaths and tunnels.
func (m *Manager) podNetworkDevices(ctx context.Context) (func(name string) bool, error) {
	ports, err := m.bridge.ListPorts(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the interfaces of the pod network: %w", err)
	}
	devices := map[string]bool{"ovs-system": true, "ovs-netdev": true}
	for _, name := range m.Devices {
		devices[name] = true
	}
	for _, p := range ports {
		devices[p.Name] = true
	}
	return func(name string) bool {
		return devices[name] || sandbox.IsHostVeth(name) || strings.HasPrefix(name, "vxlan_sys_")
	}, nil
}

// createMacvlan creates the pod's macvlan interface, if it has one.
func (m *Manager) createMacvlan(ctx context.Context, netns ns.NetNS, pod sandbox.Pod, object *corev1.Pod) error {
	if pod.Macvlan == "" {
		return nil
	}
	i := macvlanOf(pod.Attachment)
	if at := slices.IndexFunc(pod.Addrs, netip.Addr.Is4); at >= 0 {
		i.Gateway = macvlan.Gateway{Addr: config.Gateway(m.InterfaceConfig(pod).Addrs[at]), Device: pod.IfName, RouteMTU: m.RouteMTU}
	}
	if err := m.macvlans.Create(ctx, netns, i, pod.Macvlan); err != nil {
		return asMacvlanError(object, fmt.Errorf("create the macvlan interface: %w", err))
	}
	return nil
}

func macvlanOf(a sandbox.Attachment) macvlan.Interface {
	return macvlan.Interface{Name: sandbox.MacvlanName, MAC: a.MacvlanMAC()}
}

// checkMacvlan returns an error if the pod had a macvlan interface at ADD and has it no more.
func (m *Manager) checkMacvlan(ctx context.Context, netns ns.NetNS, pod sandbox.Pod) error {
	if pod.Macvlan == "" {
		return nil
	}
	return m.macvlans.Verify(ctx, netns, macvlanOf(pod.Attachment))
}

// removeMacvlan deletes the attachment's macvlan interface from the network namespace, which may remain after DEL. Without a path it uses that of the attached pod. The
// pod is unknown after an interrupted ADD.
func (m *Manager) removeMacvlan(ctx context.Context, a sandbox.Attachment, path string) error {
	pod, attached := m.get(a)
	if attached && pod.Macvlan == "" {
		return nil
	}
	if path == "" {
		path = pod.Netns
	}
	if path == "" {
		return nil
	}
	netns, err := m.links.Open(path)
	if errors.As(err, new(*veth.NamespaceError)) {
		return nil // the namespace was deleted, and the interface with it
	}
	if err != nil {
		return err
	}
	defer netns.Close()
	return m.macvlans.Delete(ctx, netns, macvlanOf(a))
}

// asMacvlanError returns an error that the user of the pod can solve as ErrMacvlanRefused, and others unchanged.
func asMacvlanError(object *corev1.Pod, err error) error {
	var refused *macvlan.ParentError
	if errors.As(err, &refused) {
		return refuseMacvlan(object, refused)
	}
	return err
}

func refuseMacvlan(object *corev1.Pod, cause error) error {
	value, _ := config.MacvlanAnnotation(object)
	return types.NewError(ErrMacvlanRefused, fmt.Sprintf("pod %s/%s can't have the macvlan interface that its annotation %s=%q asks for",
		object.Namespace, object.Name, networkv1.AssignMacvlanAnnotation, config.Shorten(value)), cause.Error())
}

// reportMacvlan reports an annotation that differs from that of ADD: it has no effect on an attached pod. Each difference is reported once. The object is nil if the
// cache does not have the pod; the cache can be behind the object that ADD read.
func (m *Manager) reportMacvlan(ctx context.Context, pod sandbox.Pod, object *corev1.Pod) {
	if object == nil || isOlder(object, pod.Version) {
		return
	}
	difference := macvlanDifference(pod, object)
	if !m.isNewMacvlanDifference(pod.Attachment, difference) {
		return
	}
	klog.FromContext(ctx).Info("Ignored changed annotation of attached pod", "pod", klog.KObj(object), "annotation", networkv1.AssignMacvlanAnnotation, "difference", difference)
	m.events.WarnPod(pod, eventreason.MacvlanUnchanged, fmt.Sprintf("annotation %s: %s, since the annotation applies when the pod's network is set up; delete the pod so that it is created again: "+
		"it starts only if it can have the interface that it asks for then (docs/macvlan.md)", networkv1.AssignMacvlanAnnotation, difference))
}

// isOlder reports whether the object is older than that of a version. Versions that can't be compared are not.
func isOlder(object *corev1.Pod, version string) bool {
	order, err := resourceversion.CompareResourceVersion(object.ResourceVersion, version)
	return err == nil && order < 0
}

// macvlanDifference returns what the pod has instead of what the annotation asks for; "" if it is the same.
func macvlanDifference(pod sandbox.Pod, object *corev1.Pod) string {
	value, asks := config.MacvlanAnnotation(object)
	switch {
	case asks && pod.Macvlan == "":
		return fmt.Sprintf("%q has no effect, and the pod has no interface %s", config.Shorten(value), sandbox.MacvlanName)
	case !asks && pod.Macvlan != "":
		return fmt.Sprintf("the pod retains its interface %s on %s, which it no longer asks for", sandbox.MacvlanName, pod.Macvlan)
	case asks && value != config.MacvlanOnDefaultRoute && value != pod.Macvlan:
		return fmt.Sprintf("%q has no effect, and the pod retains its interface %s on %s", config.Shorten(value), sandbox.MacvlanName, pod.Macvlan)
	}
	return ""
}

// attachedWithMacvlan returns the attachments of the pod that have a macvlan interface or may differ from what the pod asks for.
func (m *Manager) attachedWithMacvlan(object *corev1.Pod) (pods []sandbox.Pod) {
	_, asks := config.MacvlanAnnotation(object)
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, p := range m.attached {
		if !asks && p.Macvlan == "" && m.macvlanReported[p.Attachment] == "" {
			continue
		}
		if p.Namespace == object.Namespace && p.Name == object.Name && sandbox.IsPod(object, p.UID) {
			pods = append(pods, p)
		}
	}
	return pods
}

// isNewMacvlanDifference stores the difference of an attached pod, and reports whether there is one that is not reported yet.
func (m *Manager) isNewMacvlanDifference(a sandbox.Attachment, difference string) bool {
	m.mu.RLock()
	isReported := m.macvlanReported[a] == difference
	m.mu.RUnlock()
	if isReported {
		return false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, attached := m.attached[a]; !attached || m.macvlanReported[a] == difference {
		return false
	}
	if difference == "" {
		delete(m.macvlanReported, a)
		return false
	}
	m.macvlanReported[a] = difference
	return true
}
