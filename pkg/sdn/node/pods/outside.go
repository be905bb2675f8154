package pods

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
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
	return fmt.Sprintf("address %s is outside of the node's current subnet %s (HostSubnet %s), so the pod has no network, and policies and services still use the address, which may become another pod's; delete the pod soon, or restore the previous subnet in the HostSubnet if no other HostSubnet has it",
		sandbox.JoinAddrs(e.addrs), joinPrefixes(e.subnets), e.node)
}

// outside returns the fault of a pod with addresses outside of the node's subnets, or nil.
func (m *Manager) outside(pod sandbox.Pod) *outsideError {
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
func (m *Manager) rejectOutside(ctx context.Context, pod sandbox.Pod) bool {
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
		klog.FromContext(ctx).Error(fault, "Rejected pod with address outside of the node's subnet", "pod", klog.KRef(pod.Namespace, pod.Name), "action", "delete the pod")
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
	return fmt.Errorf("%d running pods have addresses outside of the node's current subnet %s, and no network: %s; delete these pods", count, joinPrefixes(m.Subnets), strings.Join(names, ", "))
}

func joinPrefixes(prefixes []netip.Prefix) string {
	texts := make([]string, len(prefixes))
	for i, p := range prefixes {
		texts[i] = p.String()
	}
	return strings.Join(texts, ", ")
}
