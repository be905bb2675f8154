package policy

import (
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apitypes "k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// PodKey identifies a pod. A pod that was deleted while its processes continue differs from its successor of the same name by the UID.
type PodKey struct {
	Namespace, Name string
	UID             apitypes.UID // config.PodUID; "" for Nodes
}

// KeyOf returns the key of the pod.
func KeyOf(p *corev1.Pod) PodKey {
	return PodKey{Namespace: p.Namespace, Name: p.Name, UID: config.PodUID(p)}
}

// Pod has the properties of a pod that policies depend on.
type Pod struct {
	PodKey
	Labels map[string]string
	Addrs  []netip.Addr // in the pod network; none before the pod starts, and after it has ended
	Ports  []NamedPort
	Absent bool // no policy selects it: it is host-networked
	Ended  bool // it is no peer; but while it is on this node, its processes may still run, and rules apply to it
}

// NamedPort is a name for a port in a container.
type NamedPort struct {
	Name     string
	Protocol corev1.Protocol
	Number   uint16
}

// maxNamedPorts bounds the named ports of a pod, in the order of its containers. Rules do not match further ones by name. Each number that pods have for a
// name is a conjunction in each rule with the name, also in rules of other namespaces.
const maxNamedPorts = 256

// NewPod converts a pod.
func NewPod(p *corev1.Pod) Pod {
	out := Pod{PodKey: KeyOf(p), Labels: p.Labels, Absent: p.Spec.HostNetwork}
	if out.Absent {
		return out
	}
	out.Ended = p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	for _, ip := range p.Status.PodIPs {
		if addr, err := netip.ParseAddr(ip.IP); err == nil && !out.Ended { // the address of an ended pod may be another pod's
			out.Addrs = append(out.Addrs, addr.Unmap())
		}
	}
	for _, port := range namedPorts(&p.Spec) {
		protocol := port.Protocol
		if protocol == "" {
			protocol = corev1.ProtocolTCP
		}
		out.Ports = append(out.Ports, NamedPort{port.Name, protocol, uint16(port.ContainerPort)}) //nolint:gosec // validated by the API server
	}
	return out
}

// CompactContainers returns one container with the ports that NewPod reads, or none. The API bounds only the size of the whole pod, so that it has room for
// thousands of containers and ports.
func CompactContainers(s *corev1.PodSpec) []corev1.Container {
	ports := namedPorts(s)
	if len(ports) == 0 {
		return nil
	}
	return []corev1.Container{{Ports: ports}}
}

// namedPorts returns the first maxNamedPorts ports that have a name.
func namedPorts(s *corev1.PodSpec) (ports []corev1.ContainerPort) {
	add := func(c *corev1.Container) {
		for _, port := range c.Ports {
			if port.Name != "" && len(ports) < maxNamedPorts {
				ports = append(ports, port)
			}
		}
	}
	for i := range s.Containers {
		add(&s.Containers[i])
	}
	for i := range s.InitContainers {
		if c := &s.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			add(c) // a sidecar runs as long as the pod
		}
	}
	return ports
}

// pod is a pod with the sets that it is in.
type pod struct {
	Pod
	namespace *namespace
	known     bool         // SetPod has been called
	local     bool         // on this node
	attached  []netip.Addr // allocated on this node, perhaps not in the status yet
	at        []*address   // see addrs
	oneAt     [1]*address  // backs at: nearly all pods have one address
	sets      memberships
}

// address is an address of pods. Two pods have it if it is allocated to a new pod before the engine knows that the previous one has ended.
type address struct {
	netip.Addr
	pods    []*pod
	onePod  [1]*pod
	changed bool     // since Drain
	staging *staging // active when a pod got the address last; nil: none
}

// addrs returns the addresses of the pod: from its status, and allocated on this node.
func (p *pod) addrs() []netip.Addr {
	all := slices.Clone(p.Addrs)
	for _, a := range p.attached {
		if !slices.Contains(all, a) {
			all = append(all, a)
		}
	}
	return all
}

// SetPod adds or changes the pod.
func (e *Engine) SetPod(p Pod) {
	e.update(p.PodKey, func(x *pod) { x.Pod, x.known = p, true })
}

// DeletePod deletes the pod. If it is attached to this node, rules still apply to it until Detach.
func (e *Engine) DeletePod(key PodKey) {
	e.update(key, func(x *pod) { x.Pod, x.known = Pod{PodKey: key}, false })
}

// EndPod marks a pod of this node as ended: the API server no longer has it.
func (e *Engine) EndPod(key PodKey) {
	e.update(key, func(x *pod) { x.Addrs, x.Ended = nil, true })
}

// Attach adds the pod to this node, with these addresses: the rules that apply to it are compiled. A further call compiles them
// again.
func (e *Engine) Attach(key PodKey, addrs ...netip.Addr) {
	e.update(key, func(x *pod) { x.local, x.attached = true, addrs })
	e.touch(Clause{Kind: Target, Pod: key})
}

// Detach is the reverse of Attach.
func (e *Engine) Detach(key PodKey) {
	e.update(key, func(x *pod) { x.local, x.attached = false, nil })
}

// update changes a pod, and the rules that its labels, addresses and ports affect.
func (e *Engine) update(key PodKey, change func(*pod)) {
	p := e.pods[key]
	if p == nil {
		p = &pod{Pod: Pod{PodKey: key}, namespace: e.namespace(key.Namespace)}
		p.at, p.sets.list = p.oneAt[:0], p.sets.few[:0]
		p.namespace.pods[p] = struct{}{}
		p.namespace.byLabel.add(label{}, p)
		e.pods[key] = p
	}
	had, wasLocal, wasKnown, revokes := p.Labels, p.local, p.known, e.revokes
	change(p)
	changed, shared := e.readdress(p)
	if changed && (wasLocal == p.local || shared) { // else it starts or ends, and no rule has allowed or denied anything by these addresses
		for _, m := range p.sets.list {
			e.recent.addPeers(m.set)
		}
	}
	retargeted := wasLocal && p.local && (wasKnown != p.known || !maps.Equal(had, p.Labels))
	if retargeted {
		e.recent.addTargets(p)
	}
	if !maps.Equal(had, p.Labels) {
		p.relabel(had)
	}
	for g := range p.affectedGroups() {
		e.reassign(g, p, g.matches(p))
	}
	if retargeted {
		e.recent.addTargets(p)
	}
	e.rebuildLocalChanged()
	if wasLocal != p.local || p.local && wasKnown != p.known {
		e.touch(Clause{Kind: Target, Pod: key})
	}
	e.revokes = e.revokes || p.local && wasKnown && !p.known // its policies are unknown
	if !wasLocal && p.local {
		e.revokes = revokes // its addresses are new: there are no connections to revoke
	}
	if !p.known && !p.local {
		delete(e.pods, key)
		delete(p.namespace.pods, p)
		p.namespace.byLabel.remove(label{}, p)
		e.deleteUnused(p.namespace)
	}
}

// relabel moves the pod in the index from its previous labels to its current ones.
func (p *pod) relabel(had map[string]string) {
	for k, v := range had {
		p.namespace.byLabel.remove(label{k, v}, p)
	}
	for k, v := range p.Labels {
		p.namespace.byLabel.add(label{k, v}, p)
	}
}

// readdress updates the addresses of the pod. It reports whether any changed, and whether another pod has one of the
// changed ones.
func (e *Engine) readdress(p *pod) (changed, shared bool) {
	now := p.addrs()
	p.at = slices.DeleteFunc(p.at, func(a *address) bool {
		removed := !slices.Contains(now, a.Addr)
		if removed {
			a.pods = slices.DeleteFunc(a.pods, func(x *pod) bool { return x == p })
			e.touchAddress(a)
			e.removedAddr(p, a.Addr)
			changed, shared = true, shared || len(a.pods) > 0
		}
		return removed
	})
	for _, addr := range now {
		if slices.ContainsFunc(p.at, func(a *address) bool { return a.Addr == addr }) {
			continue
		}
		a := e.address(addr)
		shared = shared || len(a.pods) > 0
		a.pods, a.staging = append(a.pods, p), e.staging
		p.at = append(p.at, a)
		e.touchAddress(a)
		e.addedAddr(p)
		changed = true
	}
	return changed, shared
}
