package pods

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
)

// outsideError is the fault of a running pod with an address outside of the node's subnets: the HostSubnet has changed since its ADD. Other nodes send packets
// for the address elsewhere, and it may be another pod's. Therefore the pod gets no flows (docs/decisions/0012). Its address stays allocated: if the HostSubnet
// gets the previous subnet back, the pod gets its flows back.
type outsideError struct {
	addrs   []netip.Addr
	subnets []netip.Prefix
	node    string
}

func (e *outsideError) Error() string {
	return fmt.Sprintf("its address %s is outside of %v, the subnet of node %s now, so it has no network; delete the pod, or write its previous subnet back into HostSubnet %s if no other HostSubnet has it",
		joinAddrs(e.addrs), e.subnets, e.node, e.node)
}

// outside returns the fault of a pod with addresses outside of the node's subnets, or nil.
func (m *Manager) outside(pod Pod) *outsideError {
	var addrs []netip.Addr
	for _, addr := range pod.Addrs {
		if !slices.ContainsFunc(m.Subnets, func(s netip.Prefix) bool { return s.Contains(addr) }) {
			addrs = append(addrs, addr)
		}
	}
	if addrs == nil {
		return nil
	}
	return &outsideError{addrs: addrs, subnets: m.Subnets, node: m.NodeName}
}

// rejectOutside reports whether the pod has addresses outside of the node's subnets. It stores that as the pod's fault, and reports it once on the pod.
func (m *Manager) rejectOutside(ctx context.Context, pod Pod) bool {
	fault := m.outside(pod)
	if fault == nil {
		return false
	}
	m.setAttached(pod, fault)
	m.mu.Lock()
	reported := m.outsideReported[pod.Attachment]
	m.outsideReported[pod.Attachment] = true
	m.mu.Unlock()
	if !reported {
		klog.FromContext(ctx).Error(fault, "Pod has an address outside of the node's subnet", "pod", klog.KRef(pod.Namespace, pod.Name), "action", "delete the pod")
		m.events.WarnPod(pod, eventreason.AddressOutsideSubnet, fmt.Sprintf("pod %s/%s: %v", pod.Namespace, pod.Name, fault))
	}
	return true
}

// Outside returns an error that names the running pods with addresses outside of the node's subnets, or nil.
func (m *Manager) Outside() error {
	var names []string
	for _, pod := range m.Pods() {
		if m.outside(pod) != nil {
			names = append(names, pod.Namespace+"/"+pod.Name)
		}
	}
	if names == nil {
		return nil
	}
	count := len(names)
	if count > maxPodsInEvent {
		names = append(names[:maxPodsInEvent], "…")
	}
	return fmt.Errorf("%d running pods have addresses outside of %v, the node's subnet now, and no network: %s; delete them", count, m.Subnets, strings.Join(names, ", "))
}
