// Package macvlan creates macvlan interfaces in the network namespaces of pods, with an interface of the host as their parent.
package macvlan

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/netlinks"
)

// Links creates macvlan interfaces between the network namespace of the calling process and those of pods.
type Links struct{}

// Interface is a macvlan interface in a pod. It has no address: the pod configures it.
type Interface struct {
	Name    string
	MAC     net.HardwareAddr // an interface with another MAC is not the agent's
	Gateway Gateway
}

// Gateway is the pod's IPv4 gateway in the pod network. By it a pod reaches the addresses of its macvlan interface's parent, to which the kernel forwards no packets of
// the macvlan interface.
type Gateway struct {
	Addr     netip.Addr // zero: the pod has none
	Device   string     // the pod's interface in the pod network
	RouteMTU int        // bytes; 0: not set
}

// Create creates the interface in the pod's namespace, sets it up, and adds routes to the parent's IPv4 addresses by the gateway, as OpenShift SDN. No state of
// the host refers to it: the kernel deletes it with the namespace, and with the parent. It replaces the interface of an interrupted Create. It returns a
// *ParentError if the parent can't have macvlan interfaces.
func (Links) Create(ctx context.Context, pod ns.NetNS, i Interface, parent string) error {
	h, err := netlinks.Open(ctx)
	if err != nil {
		return err
	}
	defer h.Close()
	lower, err := find(h, parent)
	if err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = i.Name
	attrs.HardwareAddr = i.MAC
	attrs.ParentIndex = lower.Attrs().Index
	attrs.Namespace = netlink.NsFd(pod.Fd()) // created there, not moved
	// As OpenShift SDN: private, so that pods with the same parent do not reach each other.
	link := &netlink.Macvlan{LinkAttrs: attrs, Mode: netlink.MACVLAN_MODE_PRIVATE}
	err = h.LinkAdd(link)
	if errors.Is(err, unix.EEXIST) {
		if err := (Links{}).Delete(ctx, pod, i); err != nil {
			return err
		}
		err = h.LinkAdd(link)
	}
	switch {
	case errors.Is(err, unix.EEXIST):
		return fmt.Errorf("%s already has an interface %s", pod.Path(), i.Name)
	case errors.Is(err, unix.EOPNOTSUPP):
		return &ParentError{Parent: parent, Cause: "the node's kernel has no macvlan; load its module macvlan", Err: err}
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.EBUSY):
		return &ParentError{Parent: parent, Cause: "the kernel refuses it as the parent of a macvlan interface; name an Ethernet interface that is in no bridge, bond or other switch", Err: err}
	case err != nil:
		return fmt.Errorf("%s on %s in %s: %w", i.Name, parent, pod.Path(), err)
	}
	addrs, err := h.AddrList(lower, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("list addresses of %s: %w", parent, err)
	}
	return netlinks.InPod(ctx, pod, func(h netlinksafe.Handle) error { return configure(h, i, addrs) })
}

// addrGenModeNone disables IPv6 link-local addresses, and with them router solicitations (IN6_ADDR_GEN_MODE_NONE in linux/if_link.h).
const addrGenModeNone = 1

// configure must be called in the pod's network namespace. parents are the addresses of the parent.
func configure(h netlinksafe.Handle, i Interface, parents []netlink.Addr) error {
	link, err := h.LinkByName(i.Name)
	if err != nil {
		return fmt.Errorf("find %s: %w", i.Name, err)
	}
	// EAFNOSUPPORT: the kernel has no IPv6.
	if err := h.LinkSetIP6AddrGenMode(link, addrGenModeNone); err != nil && !errors.Is(err, unix.EAFNOSUPPORT) {
		return fmt.Errorf("set addrgenmode none on %s: %w", i.Name, err)
	}
	if err := h.LinkSetUp(link); err != nil {
		return fmt.Errorf("set %s up: %w", i.Name, err)
	}
	if !i.Gateway.Addr.IsValid() || len(parents) == 0 {
		return nil
	}
	device, err := h.LinkByName(i.Gateway.Device)
	if err != nil {
		return fmt.Errorf("find %s: %w", i.Gateway.Device, err)
	}
	for _, parent := range parents {
		to := &net.IPNet{IP: parent.IP, Mask: net.CIDRMask(32, 32)}
		route := &netlink.Route{LinkIndex: device.Attrs().Index, Dst: to, Gw: i.Gateway.Addr.AsSlice(), MTU: i.Gateway.RouteMTU}
		if err := h.RouteReplace(route); err != nil {
			return fmt.Errorf("add route to %s of the node: %w", to, err)
		}
	}
	return nil
}

// Verify returns an error unless the pod has the interface that Create created. Its addresses and its state are the pod's.
func (Links) Verify(ctx context.Context, pod ns.NetNS, i Interface) error {
	return netlinks.InPod(ctx, pod, func(h netlinksafe.Handle) error {
		link, err := h.LinkByName(i.Name)
		if err != nil {
			return fmt.Errorf("find %s: %w", i.Name, err)
		}
		macvlan, ok := link.(*netlink.Macvlan)
		if !ok {
			return fmt.Errorf("%s is a %s, want a macvlan", i.Name, link.Type())
		}
		if macvlan.Mode != netlink.MACVLAN_MODE_PRIVATE {
			return fmt.Errorf("%s is not in mode private", i.Name)
		}
		if !bytes.Equal(macvlan.HardwareAddr, i.MAC) {
			return fmt.Errorf("%s has MAC %s, want %s", i.Name, macvlan.HardwareAddr, i.MAC)
		}
		return nil
	})
}

// Delete deletes the interface from the pod's namespace. One that does not exist is not an error. It leaves an interface that Create did not create.
func (Links) Delete(ctx context.Context, pod ns.NetNS, i Interface) error {
	return netlinks.InPod(ctx, pod, func(h netlinksafe.Handle) error {
		link, err := h.LinkByName(i.Name)
		if isNotFound(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("find %s: %w", i.Name, err)
		}
		if _, ok := link.(*netlink.Macvlan); !ok || !bytes.Equal(link.Attrs().HardwareAddr, i.MAC) {
			return nil
		}
		// ENODEV: it was deleted with its parent.
		if err := h.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
			return fmt.Errorf("delete %s: %w", i.Name, err)
		}
		return nil
	})
}

func isNotFound(err error) bool {
	var notFound netlink.LinkNotFoundError
	return errors.As(err, &notFound)
}
