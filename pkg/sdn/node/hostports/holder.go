package hostports

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/listeners"
)

// ErrHostPortTaken is the error code of ADD when another pod, a Service or a process of the host has a host port. (The specification reserves codes from 100
// for plugins.)
const ErrHostPortTaken uint = 101

// reservedPorts are TCP ports of programs of nodes, which may not run when a pod asks for them: sshd, etcd, the API server, kubelet, kube-proxy or the
// agent in its place, kube-controller-manager, kube-scheduler, and the controller's and agent's defaults.
func reservedPorts() []int {
	return []int{22, 2379, 2380, 6443, 10249, 10250, 10256, 10257, 10259, 9410, 9411, 9446, 9447}
}

// holders finds the users of host ports other than pods of the network.
type holders struct {
	ports   *Ports
	local   []netip.Addr
	sockets map[string][]listeners.Listener // by protocol
}

// holders lists the node's addresses, and the sockets of the host for the protocols of the mappings.
func (p *Ports) holders(mappings []Mapping) (h holders, err error) {
	h = holders{ports: p, sockets: map[string][]listeners.Listener{}}
	if h.local, err = p.localAddrs(); err != nil {
		return h, err
	}
	for _, m := range mappings {
		if _, listed := h.sockets[m.Protocol]; listed {
			continue
		}
		if h.sockets[m.Protocol], err = p.listeners(m.Protocol); err != nil {
			return h, err
		}
	}
	return h, nil
}

// of returns the user of a host port, or "": the rules would take its packets.
func (h holders) of(m Mapping) (string, error) {
	if !m.addr().Is4() { // has no rule
		return "", nil
	}
	addrs := []netip.Addr{m.addr()}
	if m.addr().IsUnspecified() {
		addrs = h.local
	}
	if holder, err := h.ports.Holder(m, addrs); err != nil || holder != "" {
		return holder, err
	}
	if m.Protocol == protocolTCP && slices.Contains(reservedPorts(), m.HostPort) {
		return "the node: it is reserved for the programs of nodes", nil
	}
	for _, l := range h.sockets[m.Protocol] {
		if m.receivedBy(l) {
			return fmt.Sprintf("a process of the host's user %d, on %s; `ss -lnp sport = :%d` on the node shows it", l.UID, l.Addr, m.HostPort), nil
		}
	}
	return "", nil
}

// refuseTaken returns a CNI error if a program of the host or another object has one of the record's host ports.
func (p *Ports) refuseTaken(r record) error {
	h, err := p.holders(r.Mappings)
	if err != nil {
		return types.NewError(types.ErrTryAgainLater, "the node can't map host ports", err.Error())
	}
	for _, m := range r.Mappings {
		holder, err := h.of(m)
		if err != nil {
			return types.NewError(types.ErrTryAgainLater, "the node can't map host ports", err.Error())
		}
		if holder != "" {
			return takenBy(&m, holder)
		}
	}
	p.reportIgnored(r, h.local)
	return nil
}

// reportIgnored reports the mappings whose addresses are not the node's.
func (p *Ports) reportIgnored(r record, local []netip.Addr) {
	var ignored []string
	for _, m := range r.Mappings {
		addr := m.addr()
		switch {
		case addr.Is6():
			ignored = append(ignored, fmt.Sprintf("host port %s, since the pod has no IPv6 address", m))
		case !addr.IsUnspecified() && !addr.IsLoopback() && !slices.Contains(local, addr):
			ignored = append(ignored, fmt.Sprintf("host port %s, since the node does not have the address", m))
		}
	}
	if len(ignored) > 0 {
		p.WarnPod(r.Namespace, r.Name, r.UID, eventreason.NotSupported, "the network ignores "+strings.Join(ignored, "; "))
	}
}

func takenBy(m *Mapping, holder string) error {
	return types.NewError(ErrHostPortTaken, fmt.Sprintf("host port %s is taken by %s", m, holder), "")
}

// conflicts returns the host ports of pods that a Service or a program of the host has, too: it appeared after ADD, which refuses taken ports.
func (p *Ports) conflicts(ctx context.Context, all []record) (found []string, err error) {
	var mappings []Mapping
	for _, r := range all {
		mappings = append(mappings, r.Mappings...)
	}
	if len(mappings) == 0 {
		return nil, nil
	}
	h, err := p.holders(mappings)
	if err != nil {
		return nil, err
	}
	for _, r := range all {
		for _, m := range r.Mappings {
			holder, err := h.of(m)
			if err != nil || ctx.Err() != nil {
				return found, err
			}
			if holder != "" {
				found = append(found, fmt.Sprintf("host port %s of pod %s/%s is also used by %s", m, r.Namespace, r.Name, holder))
			}
		}
	}
	return found, nil
}
