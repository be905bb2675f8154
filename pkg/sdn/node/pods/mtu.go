package pods

import (
	"bytes"
	"context"
	"fmt"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/linkmtu"
)

// renew gives a pod that an earlier agent, or an earlier configuration, attached the MTU and the routes of now. The pod keeps its old
// ones when that can't be done: most of its packets still pass, so it is left alone.
func (m *Manager) renew(ctx context.Context, pod Pod) {
	logger := klog.FromContext(ctx).WithValues("pod", klog.KRef(pod.Namespace, pod.Name), "sandbox", pod.Sandbox, "interface", pod.IfName)
	if pod.Netns == "" {
		logger.Info("Skipped update of MTU and routes: the rebuilt pod's network namespace is unknown", "action", "delete the pod if the MTU or the cluster network has changed")
		return
	}
	netns, err := m.links.Open(pod.Netns)
	if err != nil {
		logger.Error(err, "Could not see to the pod's interface, it stays as it is: delete the pod if the MTU or the cluster network has changed", "netns", pod.Netns)
		return
	}
	defer netns.Close()
	changes, err := m.links.Renew(ctx, netns, pod.HostVeth(), m.network(pod))
	if err != nil {
		logger.Error(err, "Could not give the pod the MTU and the routes of now: delete the pod", "changed", changes)
		return
	}
	if len(changes) > 0 {
		logger.Info("The pod's interface has changed", "changed", changes)
	}
}

// Renew implements Links. The host's end never takes less than the pod's sends: it goes up first and down last.
func (k Kernel) Renew(ctx context.Context, pod ns.NetNS, hostVeth string, i Interface) (changes []string, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	h, err := netlinksafe.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	defer h.Close()
	host, err := h.LinkByName(hostVeth)
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", hostVeth, err)
	}
	// Agents before this one left IPv6 on.
	if err := k.silence(hostVeth); err != nil {
		return nil, err
	}
	setHost := func() error {
		if err := h.LinkSetMTU(host, i.MTU); err != nil {
			return fmt.Errorf("set the MTU of %s to %d: %w", hostVeth, i.MTU, err)
		}
		changes = append(changes, fmt.Sprintf("%s: MTU %d (was %d)", hostVeth, i.MTU, host.Attrs().MTU))
		return nil
	}
	setPod := func(ns.NetNS) error {
		done, err := renewPod(i)
		for _, c := range done {
			changes = append(changes, i.Name+": "+c)
		}
		return err
	}
	if host.Attrs().MTU < i.MTU {
		if err := setHost(); err != nil {
			return changes, err
		}
		return changes, pod.Do(setPod)
	}
	if err := pod.Do(setPod); err != nil {
		return changes, err
	}
	if host.Attrs().MTU > i.MTU {
		return changes, setHost()
	}
	return changes, nil
}

// renewPod is called in the pod's namespace.
func renewPod(i Interface) (changes []string, err error) {
	h, err := netlinksafe.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	defer h.Close()
	link, err := h.LinkByName(i.Name)
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", i.Name, err)
	}
	if have := link.Attrs().HardwareAddr; !bytes.Equal(have, i.MAC) {
		return nil, fmt.Errorf("%s has MAC %s, not %s", i.Name, have, i.MAC)
	}
	changes, err = linkmtu.Change{
		Netlink: h, Link: link,
		Want: linkmtu.MTU{Link: i.MTU, Routes: i.RouteMTU},
		// Also those that an earlier configuration had, or the pod itself added: they lead to the same switch.
		Ours: func(r netlink.Route) bool { return r.Protocol != unix.RTPROT_KERNEL && r.Type == unix.RTN_UNICAST },
	}.Apply()
	if err != nil {
		return changes, err
	}
	routes, err := renewRoutes(h, link, i)
	return append(changes, routes...), err
}
