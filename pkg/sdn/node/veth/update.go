package veth

import (
	"bytes"
	"context"
	"fmt"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/linkmtu"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/netlinks"
)

// Update sets the MTU of both ends and the routes of a pair in use, and returns the changes. A pod's end with another MAC is an error, and
// nothing is changed. The MTU of the host's end is raised first and lowered last, so that it is never below that of the pod's end.
func (l Links) Update(ctx context.Context, pod ns.NetNS, hostVeth string, i Interface) (changes []string, err error) {
	h, err := netlinks.Open(ctx)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	host, err := h.LinkByName(hostVeth)
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", hostVeth, err)
	}
	// Earlier versions of the agent set other sysctls.
	if changes, err = l.RestoreSysctls(ctx, hostVeth); err != nil {
		return changes, err
	}
	setHost := func() error {
		if err := h.LinkSetMTU(host, i.MTU); err != nil {
			return fmt.Errorf("set the MTU of %s to %d: %w", hostVeth, i.MTU, err)
		}
		changes = append(changes, fmt.Sprintf("%s: MTU %d (was %d)", hostVeth, i.MTU, host.Attrs().MTU))
		return nil
	}
	setPod := func(h netlinksafe.Handle) error {
		done, err := updatePod(h, i)
		for _, c := range done {
			changes = append(changes, i.Name+": "+c)
		}
		return err
	}
	if host.Attrs().MTU < i.MTU {
		if err := setHost(); err != nil {
			return changes, err
		}
		return changes, netlinks.InPod(ctx, pod, setPod)
	}
	if err := netlinks.InPod(ctx, pod, setPod); err != nil {
		return changes, err
	}
	if host.Attrs().MTU > i.MTU {
		return changes, setHost()
	}
	return changes, nil
}

// updatePod must be called in the pod's network namespace.
func updatePod(h netlinksafe.Handle, i Interface) (changes []string, err error) {
	link, err := h.LinkByName(i.Name)
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", i.Name, err)
	}
	if have := link.Attrs().HardwareAddr; !bytes.Equal(have, i.MAC) {
		return nil, fmt.Errorf("%s has MAC %s, want %s", i.Name, have, i.MAC)
	}
	changes, err = linkmtu.Change{
		Netlink: h, Link: link,
		Want: linkmtu.MTU{Link: i.MTU, Routes: i.RouteMTU},
		// This includes routes of an earlier configuration, and those that the pod added: they lead to the same switch.
		Selects: func(r netlink.Route) bool { return r.Protocol != unix.RTPROT_KERNEL && r.Type == unix.RTN_UNICAST },
	}.Apply()
	if err != nil {
		return changes, err
	}
	routes, err := updateRoutes(h, link, i)
	return append(changes, routes...), err
}
