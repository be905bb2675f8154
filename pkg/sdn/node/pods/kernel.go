package pods

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/sysctl"
)

// loopbackIndex is lo's in every network namespace: the kernel makes it first (include/net/net_namespace.h, LOOPBACK_IFINDEX).
const loopbackIndex = 1

// addrGenModeNone keeps the kernel from making an IPv6 link-local address (IN6_ADDR_GEN_MODE_NONE in linux/if_link.h): no
// duplicate detection to wait for, no router solicitations from thousands of veths. Unlike disable_ipv6 it leaves ::1 and
// dual-stack sockets to the pod; unlike both it needs no writable /proc/sys, and one netlink message sets it.
const addrGenModeNone = 1

// Kernel makes devices by netlink, in the network namespace of the calling process.
type Kernel struct {
	Sysctls sysctl.Dir
}

var _ Links = Kernel{}

// Open implements Links.
func (Kernel) Open(path string) (ns.NetNS, error) {
	pod, err := ns.GetNS(path)
	if err != nil {
		return nil, fmt.Errorf("%s is not a network namespace: %w", path, err)
	}
	if err := checkNamespace(pod); err != nil {
		return nil, errors.Join(err, pod.Close())
	}
	return pod, nil
}

// checkNamespace accepts network namespaces other than the agent's own.
func checkNamespace(pod ns.NetNS) error {
	// Statfs, which ns.GetNS looks at, can't tell the kinds of namespace apart (ioctl_nsfs(2)).
	if kind, err := unix.IoctlRetInt(int(pod.Fd()), unix.NS_GET_NSTYPE); err != nil || kind != unix.CLONE_NEWNET {
		return fmt.Errorf("%s is not a network namespace", pod.Path())
	}
	// Namespaces are equal when device and inode are (namespaces(7)). The agent's is that of the thread, not of the process
	// (see ns.GetCurrentNS); whoever changes it never gives a thread back with another.
	var own, other unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &own); err != nil {
		return os.NewSyscallError("stat /proc/thread-self/ns/net", err)
	}
	if err := unix.Fstat(int(pod.Fd()), &other); err != nil {
		return os.NewSyscallError("fstat "+pod.Path(), err)
	}
	if own.Dev == other.Dev && own.Ino == other.Ino {
		return fmt.Errorf("%s is the node's network namespace, a pod with hostNetwork must not be attached", pod.Path())
	}
	return nil
}

// Create implements Links.
func (k Kernel) Create(ctx context.Context, pod ns.NetNS, hostVeth string, i Interface) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	h, err := netlinksafe.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer h.Close()

	attrs := netlink.NewLinkAttrs()
	attrs.Name = hostVeth
	attrs.MTU = i.MTU
	veth := netlink.NewVeth(attrs)
	veth.PeerName = i.Name
	veth.PeerHardwareAddr = i.MAC
	veth.PeerNamespace = netlink.NsFd(pod.Fd()) // made there, not moved

	err = h.LinkAdd(veth)
	if errors.Is(err, unix.EEXIST) {
		// Either name can be the one in use.
		if err := deleteLink(h, hostVeth); err != nil {
			return err
		}
		err = h.LinkAdd(veth)
	}
	if errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("%s already has an interface %s", pod.Path(), i.Name)
	}
	if err != nil {
		return fmt.Errorf("%s with peer %s in %s: %w", hostVeth, i.Name, pod.Path(), err)
	}
	if err := setAlias(h, veth, i.HostAlias); err != nil {
		return err
	}
	if err := k.silence(hostVeth); err != nil {
		return err
	}
	return setUp(h, veth)
}

// setAlias sets the alias in a netlink message of its own: the kernel ignores an alias in the message that creates a link.
func setAlias(h netlinksafe.Handle, link netlink.Link, alias string) error {
	if err := h.LinkSetAlias(link, alias); err != nil {
		return fmt.Errorf("set alias of %s: %w", link.Attrs().Name, err)
	}
	return nil
}

// silence keeps the kernel from answering ARP, and from receiving IPv6, on the host's end. With the userspace datapath it hears what the pod sends: it
// would answer for tun0's address with a MAC that leads past the bridge, and take the pod for a router. The host's firewall drops IPv4.
func (k Kernel) silence(hostVeth string) error {
	// For no local address (Documentation/networking/ip-sysctl.rst).
	if err := k.Sysctls.Set("net/ipv4/conf/"+hostVeth+"/arp_ignore", "8"); err != nil {
		return err
	}
	// ErrNotExist: IPv6 is off in the kernel.
	if err := k.Sysctls.Set("net/ipv6/conf/"+hostVeth+"/disable_ipv6", "1"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Configure implements Links.
func (Kernel) Configure(ctx context.Context, pod ns.NetNS, i Interface) error {
	return pod.Do(func(ns.NetNS) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		h, err := netlinksafe.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("open netlink: %w", err)
		}
		defer h.Close()

		link, err := h.LinkByName(i.Name)
		if err != nil {
			return fmt.Errorf("find %s: %w", i.Name, err)
		}
		if i.NoChecksums {
			if err := disableTXChecksums(i.Name); err != nil {
				return err
			}
		}
		for _, addr := range i.Addrs {
			address := ipNet(addr)
			if err := h.AddrAdd(link, &netlink.Addr{IPNet: &address, Flags: addrFlags(addr.Addr().Is4())}); err != nil {
				return fmt.Errorf("add address %s: %w", addr, err)
			}
		}
		if err := setUp(h, link); err != nil {
			return err
		}
		lo := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: loopbackIndex}}
		if err := h.LinkSetUp(lo); err != nil {
			return fmt.Errorf("set lo up: %w", err)
		}
		for _, r := range i.Routes {
			route := kernelRoute(link.Attrs().Index, r)
			route.MTU = i.RouteMTU
			if err := h.RouteAdd(&route); err != nil {
				return fmt.Errorf("add route to %s: %w", r.To, err)
			}
		}
		return nil
	})
}

// addrFlags: no route for the prefix, see Manager.network; for IPv6 no duplicate detection, the address is ours alone.
func addrFlags(is4 bool) int {
	if is4 {
		return unix.IFA_F_NOPREFIXROUTE
	}
	return unix.IFA_F_NOPREFIXROUTE | unix.IFA_F_NODAD
}

func kernelRoute(index int, r Route) netlink.Route {
	to := ipNet(r.To)
	route := netlink.Route{LinkIndex: index, Dst: &to, Scope: netlink.SCOPE_UNIVERSE}
	if r.Via.IsValid() {
		route.Gw = r.Via.AsSlice()
	} else if r.To.Addr().Is4() { // IPv6 routes have no scope
		route.Scope = netlink.SCOPE_LINK
	}
	return route
}

// setUp sets a link up that makes no IPv6 address of its own.
func setUp(h netlinksafe.Handle, link netlink.Link) error {
	name := link.Attrs().Name
	// EAFNOSUPPORT: IPv6 is off in the kernel, or the MTU is below its minimum.
	if err := h.LinkSetIP6AddrGenMode(link, addrGenModeNone); err != nil && !errors.Is(err, unix.EAFNOSUPPORT) {
		return fmt.Errorf("set addrgenmode none on %s: %w", name, err)
	}
	if err := h.LinkSetUp(link); err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	return nil
}

// Delete implements Links.
func (Kernel) Delete(ctx context.Context, hostVeth string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	h, err := netlinksafe.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer h.Close()
	return deleteLink(h, hostVeth)
}

func deleteLink(h netlinksafe.Handle, name string) error {
	link, err := h.LinkByName(name)
	var notFound netlink.LinkNotFoundError
	if errors.As(err, &notFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find %s: %w", name, err)
	}
	// ENODEV: it went with its namespace meanwhile.
	if err := h.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete %s: %w", name, err)
	}
	return nil
}

// Find implements Links.
func (Kernel) Find(ctx context.Context, hostVeth string) (alias string, exists bool, err error) {
	if err := ctx.Err(); err != nil {
		return "", false, err
	}
	link, err := netlinksafe.LinkByName(hostVeth)
	var notFound netlink.LinkNotFoundError
	if errors.As(err, &notFound) {
		return "", false, nil
	}
	if err != nil {
		return "", false, fmt.Errorf("find %s: %w", hostVeth, err)
	}
	return link.Attrs().Alias, true, nil
}

// SetAlias implements Links.
func (Kernel) SetAlias(ctx context.Context, hostVeth, alias string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	h, err := netlinksafe.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer h.Close()
	link, err := h.LinkByName(hostVeth)
	if err != nil {
		return fmt.Errorf("find %s: %w", hostVeth, err)
	}
	return setAlias(h, link, alias)
}

// List implements Links.
func (Kernel) List(ctx context.Context) (map[string]string, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	links, err := netlinksafe.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list devices: %w", err)
	}
	aliases := make(map[string]string, len(links))
	for _, l := range links {
		aliases[l.Attrs().Name] = l.Attrs().Alias
	}
	return aliases, nil
}

// Verify implements Links.
func (Kernel) Verify(ctx context.Context, pod ns.NetNS, i Interface) error {
	return pod.Do(func(ns.NetNS) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		h, err := netlinksafe.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return fmt.Errorf("open netlink: %w", err)
		}
		defer h.Close()
		link, err := h.LinkByName(i.Name)
		if err != nil {
			return fmt.Errorf("find %s: %w", i.Name, err)
		}
		return errors.Join(verifyLink(link, i), verifyAddrs(link, i), verifyRoutes(h, link, i))
	})
}

func verifyLink(link netlink.Link, i Interface) error {
	var errs []error
	a := link.Attrs()
	if a.Flags&net.FlagUp == 0 {
		errs = append(errs, fmt.Errorf("%s is down", i.Name))
	}
	if a.HardwareAddr.String() != i.MAC.String() {
		errs = append(errs, fmt.Errorf("%s has MAC %s, not %s", i.Name, a.HardwareAddr, i.MAC))
	}
	if a.MTU != i.MTU {
		errs = append(errs, fmt.Errorf("%s has MTU %d, not %d", i.Name, a.MTU, i.MTU))
	}
	return errors.Join(errs...)
}

func verifyAddrs(link netlink.Link, i Interface) error {
	addrs, err := netlinksafe.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list addresses of %s: %w", i.Name, err)
	}
	var errs []error
	for _, want := range i.Addrs {
		if !slices.ContainsFunc(addrs, func(a netlink.Addr) bool { return a.IPNet.String() == want.String() }) {
			errs = append(errs, fmt.Errorf("%s lacks address %s", i.Name, want))
		}
	}
	return errors.Join(errs...)
}

func verifyRoutes(h netlinksafe.Handle, link netlink.Link, i Interface) error {
	routes, err := h.RouteList(link, nl.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list routes of %s: %w", i.Name, err)
	}
	var errs []error
	for _, r := range i.Routes {
		want := kernelRoute(link.Attrs().Index, r)
		at := slices.IndexFunc(routes, func(got netlink.Route) bool {
			return got.Dst != nil && got.Dst.String() == want.Dst.String() && got.Gw.Equal(want.Gw)
		})
		if at < 0 {
			errs = append(errs, fmt.Errorf("%s lacks the route to %s", i.Name, r.To))
		} else if got := routes[at].MTU; got != i.RouteMTU {
			errs = append(errs, fmt.Errorf("%s has MTU %d on its route to %s, not %d (0 is none)", i.Name, got, r.To, i.RouteMTU))
		}
	}
	return errors.Join(errs...)
}
