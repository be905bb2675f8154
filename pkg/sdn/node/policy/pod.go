package policy

import (
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// PodKey names a pod.
type PodKey struct{ Namespace, Name string }

// Pod is what policies see of a pod.
type Pod struct {
	PodKey
	Labels map[string]string
	Addrs  []netip.Addr // none: it has no address of its own in the pod network (yet, or any more)
	Ports  []NamedPort
	Absent bool // no policy selects it: it has the host's network
	Ended  bool // it is nobody's peer; but as long as it is on this node, its processes may run on, and rules are about it
}

// NamedPort is a name for a port in a container.
type NamedPort struct {
	Name     string
	Protocol corev1.Protocol
	Number   uint16
}

// maxNamedPorts bounds the named ports of a pod, in the order of its containers. Further ones can't be reached by their names. Each number that pods give a
// name is a conjunction in each rule that has the name, also in rules of other namespaces.
const maxNamedPorts = 256

// NewPod reads a pod.
func NewPod(p *corev1.Pod) Pod {
	out := Pod{PodKey: PodKey{p.Namespace, p.Name}, Labels: p.Labels, Absent: p.Spec.HostNetwork}
	if out.Absent {
		return out
	}
	out.Ended = p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	for _, ip := range p.Status.PodIPs {
		if addr, err := netip.ParseAddr(ip.IP); err == nil && !out.Ended { // whose address may be another's by now
			out.Addrs = append(out.Addrs, addr.Unmap())
		}
	}
	for i := range p.Spec.Containers {
		out.addPorts(&p.Spec.Containers[i])
	}
	for i := range p.Spec.InitContainers {
		if c := &p.Spec.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			out.addPorts(c) // a sidecar runs as long as the pod
		}
	}
	return out
}

func (p *Pod) addPorts(c *corev1.Container) {
	for _, port := range c.Ports {
		if port.Name == "" {
			continue
		}
		if len(p.Ports) == maxNamedPorts {
			return
		}
		protocol := port.Protocol
		if protocol == "" {
			protocol = corev1.ProtocolTCP
		}
		p.Ports = append(p.Ports, NamedPort{port.Name, protocol, uint16(port.ContainerPort)}) //nolint:gosec // validated by the API server
	}
}

// pod is a pod with the sets that it is in.
type pod struct {
	Pod
	namespace *namespace
	known     bool         // SetPod has been called
	local     bool         // on this node
	attached  []netip.Addr // given on this node, perhaps not in the status yet
	at        []*address   // all that it is known by
	oneAt     [1]*address  // nearly all have one: what is looked at together lies together
	sets      memberships
}

// address is one that pods have; more than one does when it is given to a new pod before it is known that the former has ended.
type address struct {
	netip.Addr
	pods    []*pod
	onePod  [1]*pod
	changed bool  // since Drain
	veil    *veil // under which a pod got it last; nil: none
}

// addrs are all that the pod is known by.
func (p *pod) addrs() []netip.Addr {
	all := slices.Clone(p.Addrs)
	for _, a := range p.attached {
		if !slices.Contains(all, a) {
			all = append(all, a)
		}
	}
	return all
}

// SetPod makes the pod known, or changes it.
func (e *Engine) SetPod(p Pod) {
	e.update(p.PodKey, func(x *pod) { x.Pod, x.known = p, true })
}

// DeletePod forgets the pod. What is attached on this node stays until Detach.
func (e *Engine) DeletePod(key PodKey) {
	e.update(key, func(x *pod) { x.Pod, x.known = Pod{PodKey: key}, false })
}

// EndPod says that the API has forgotten the pod, which is on this node: it has ended.
func (e *Engine) EndPod(key PodKey) {
	e.update(key, func(x *pod) { x.Addrs, x.Ended = nil, true })
}

// Attach says that the pod is on this node, with these addresses: from now on its rules are compiled, and when it is said again they are
// compiled again.
func (e *Engine) Attach(key PodKey, addrs ...netip.Addr) {
	e.update(key, func(x *pod) { x.local, x.attached = true, addrs })
	e.touch(Piece{Kind: Target, Pod: key})
}

// Detach takes Attach back.
func (e *Engine) Detach(key PodKey) {
	e.update(key, func(x *pod) { x.local, x.attached = false, nil })
}

// update changes a pod, and all that follows from its labels, addresses and ports.
func (e *Engine) update(key PodKey, change func(*pod)) {
	p := e.pods[key]
	if p == nil {
		p = &pod{Pod: Pod{PodKey: key}, namespace: e.namespace(key.Namespace)}
		p.at, p.sets.list = p.oneAt[:0], p.sets.few[:0]
		p.namespace.pods[p] = struct{}{}
		p.namespace.byLabel.add(label{}, p)
		e.pods[key] = p
	}
	had, wasLocal, wasKnown, forbids := p.Labels, p.local, p.known, e.forbids
	change(p)
	changed, shared := e.readdress(p)
	if changed && (wasLocal == p.local || shared) { // else it starts or ends, and nothing of it was allowed or denied
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
	for g := range p.concerned() {
		e.resort(g, p, g.matches(p))
	}
	if retargeted {
		e.recent.addTargets(p)
	}
	e.considerFlipped()
	if wasLocal != p.local || p.local && wasKnown != p.known {
		e.touch(Piece{Kind: Target, Pod: key})
	}
	e.forbids = e.forbids || p.local && wasKnown && !p.known // nobody knows what it may do
	if !wasLocal && p.local {
		e.forbids = forbids // its addresses are new: nothing of before is kept
	}
	if !p.known && !p.local {
		delete(e.pods, key)
		delete(p.namespace.pods, p)
		p.namespace.byLabel.remove(label{}, p)
		e.forget(p.namespace)
	}
}

// relabel moves the pod in the index from the labels that it had to those that it has.
func (p *pod) relabel(had map[string]string) {
	for k, v := range had {
		p.namespace.byLabel.remove(label{k, v}, p)
	}
	for k, v := range p.Labels {
		p.namespace.byLabel.add(label{k, v}, p)
	}
}

// readdress moves the pod from the addresses that it had to those that it has, and reports whether they differ, and whether another pod has one of those
// that do.
func (e *Engine) readdress(p *pod) (changed, shared bool) {
	now := p.addrs()
	p.at = slices.DeleteFunc(p.at, func(a *address) bool {
		gone := !slices.Contains(now, a.Addr)
		if gone {
			a.pods = slices.DeleteFunc(a.pods, func(x *pod) bool { return x == p })
			e.touchAddress(a)
			e.loses(p, a.Addr)
			changed, shared = true, shared || len(a.pods) > 0
		}
		return gone
	})
	for _, addr := range now {
		if slices.ContainsFunc(p.at, func(a *address) bool { return a.Addr == addr }) {
			continue
		}
		a := e.address(addr)
		shared = shared || len(a.pods) > 0
		a.pods, a.veil = append(a.pods, p), e.veil
		p.at = append(p.at, a)
		e.touchAddress(a)
		e.gains(p)
		changed = true
	}
	return changed, shared
}
