// Package veth creates the veth pairs of pods by netlink: one end on the host, the other in the pod's network namespace, with its addresses and routes.
package veth

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

	"github.com/ovsdn/ovsdn/pkg/sdn/node/netlinks"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sysctl"
)

// loopbackIndex is the index of lo in every network namespace: the kernel creates it first (include/net/net_namespace.h, LOOPBACK_IFINDEX).
const loopbackIndex = 1

// addrGenModeNone disables IPv6 link-local addresses (IN6_ADDR_GEN_MODE_NONE in linux/if_link.h), and with them duplicate address
// detection and the router solicitations of thousands of veths. Unlike disable_ipv6 it retains ::1 and dual-stack sockets in the pod,
// and requires no writable /proc/sys.
const addrGenModeNone = 1

// Links creates veth pairs between the network namespace of the calling process and those of pods.
type Links struct {
	Sysctls sysctl.Dir
}

// Open opens a pod's network namespace. It returns a *NamespaceError for a path that is none, such as that of a deleted one, and for the agent's own.
func (Links) Open(path string) (ns.NetNS, error) {
	pod, err := ns.GetNS(path)
	if errors.As(err, new(ns.NSPathNotExistErr)) || errors.As(err, new(ns.NSPathNotNSErr)) || errors.Is(err, fs.ErrNotExist) {
		return nil, &NamespaceError{Path: path, cause: "is not a network namespace", err: err}
	}
	if err != nil {
		return nil, fmt.Errorf("open network namespace %s: %w", path, err)
	}
	if err := checkNamespace(pod); err != nil {
		return nil, errors.Join(err, pod.Close())
	}
	return pod, nil
}

// checkNamespace returns an error unless pod is a network namespace other than the agent's own.
func checkNamespace(pod ns.NetNS) error {
	// Statfs, which ns.GetNS uses, does not distinguish the types of namespaces (ioctl_nsfs(2)).
	if kind, err := unix.IoctlRetInt(int(pod.Fd()), unix.NS_GET_NSTYPE); err != nil || kind != unix.CLONE_NEWNET {
		return &NamespaceError{Path: pod.Path(), cause: "is not a network namespace", err: err}
	}
	// Namespaces are equal if device and inode are (namespaces(7)). The agent's is that of the thread, not of the process
	// (see ns.GetCurrentNS).
	var own, other unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &own); err != nil {
		return os.NewSyscallError("stat /proc/thread-self/ns/net", err)
	}
	if err := unix.Fstat(int(pod.Fd()), &other); err != nil {
		return os.NewSyscallError("fstat "+pod.Path(), err)
	}
	if own.Dev == other.Dev && own.Ino == other.Ino {
		return &NamespaceError{Path: pod.Path(), cause: "is the node's network namespace; a pod with hostNetwork can't be attached"}
	}
	return nil
}

// Create creates a pair with one end in the pod's namespace, sets the alias of the host's end, and sets it up. It replaces an existing
// device of the host's name.
func (l Links) Create(ctx context.Context, pod ns.NetNS, hostVeth string, i Interface) error {
	h, err := netlinks.Open(ctx)
	if err != nil {
		return err
	}
	defer h.Close()

	attrs := netlink.NewLinkAttrs()
	attrs.Name = hostVeth
	attrs.MTU = i.MTU
	veth := netlink.NewVeth(attrs)
	veth.PeerName = i.Name
	veth.PeerHardwareAddr = i.MAC
	veth.PeerNamespace = netlink.NsFd(pod.Fd()) // created there, not moved

	err = h.LinkAdd(veth)
	if errors.Is(err, unix.EEXIST) {
		// The host or the pod can have a device of the name.
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
	if _, err := l.RestoreSysctls(ctx, hostVeth); err != nil {
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

// RestoreSysctls restores the sysctls of the host's end, and returns the changes. It continues after errors and joins them.
func (l Links) RestoreSysctls(ctx context.Context, hostVeth string) (changes []string, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var errs []error
	for _, s := range sysctl.Table() {
		if s.Scope != sysctl.ScopeVeth {
			continue
		}
		change, err := l.Sysctls.Ensure(s, hostVeth, nil)
		if change != "" {
			changes = append(changes, change)
		}
		errs = append(errs, err)
	}
	return changes, errors.Join(errs...)
}

// Configure sets the pod's end up, with addresses, routes and checksum offload, and the loopback device.
func (Links) Configure(ctx context.Context, pod ns.NetNS, i Interface) error {
	return netlinks.InPod(ctx, pod, func(h netlinksafe.Handle) error {
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
			address := IPNet(addr)
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

// addrFlags returns flags that disable the route for the prefix, see pods.Manager.interfaceConfig, and IPv6 duplicate address detection: no other
// device has the address.
func addrFlags(is4 bool) int {
	if is4 {
		return unix.IFA_F_NOPREFIXROUTE
	}
	return unix.IFA_F_NOPREFIXROUTE | unix.IFA_F_NODAD
}

func kernelRoute(index int, r Route) netlink.Route {
	to := IPNet(r.To)
	route := netlink.Route{LinkIndex: index, Dst: &to, Scope: netlink.SCOPE_UNIVERSE}
	if r.Via.IsValid() {
		route.Gw = r.Via.AsSlice()
	} else if r.To.Addr().Is4() { // IPv6 routes have no scope
		route.Scope = netlink.SCOPE_LINK
	}
	return route
}

// setUp sets a link up without an IPv6 link-local address.
func setUp(h netlinksafe.Handle, link netlink.Link) error {
	name := link.Attrs().Name
	// EAFNOSUPPORT: the kernel has no IPv6, or the MTU is below its minimum.
	if err := h.LinkSetIP6AddrGenMode(link, addrGenModeNone); err != nil && !errors.Is(err, unix.EAFNOSUPPORT) {
		return fmt.Errorf("set addrgenmode none on %s: %w", name, err)
	}
	if err := h.LinkSetUp(link); err != nil {
		return fmt.Errorf("set %s up: %w", name, err)
	}
	return nil
}

// SetUp sets the host's end up if it is down.
func (Links) SetUp(ctx context.Context, hostVeth string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	request, err := unix.NewIfreq(hostVeth)
	if err != nil {
		return fmt.Errorf("interface name %q: %w", hostVeth, err)
	}
	// netdevice(7). Netlink would take the kernel's lock of all network devices to read the flags.
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, request); err != nil {
		return fmt.Errorf("read flags of %s: %w", hostVeth, os.NewSyscallError("ioctl SIOCGIFFLAGS", err))
	}
	flags := request.Uint16()
	if flags&unix.IFF_UP != 0 {
		return nil
	}
	request.SetUint16(flags | unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, request); err != nil {
		return fmt.Errorf("set %s up: %w", hostVeth, os.NewSyscallError("ioctl SIOCSIFFLAGS", err))
	}
	return nil
}

// Delete deletes the pair. One that does not exist is not an error.
func (Links) Delete(ctx context.Context, hostVeth string) error {
	h, err := netlinks.Open(ctx)
	if err != nil {
		return err
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
	// ENODEV: it was deleted with its namespace.
	if err := h.LinkDel(link); err != nil && !errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("delete %s: %w", name, err)
	}
	return nil
}

// Find returns the alias of the host's end, and whether it exists.
func (Links) Find(ctx context.Context, hostVeth string) (alias string, exists bool, err error) {
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

// SetAlias replaces the alias of the host's end, of at most 255 bytes.
func (Links) SetAlias(ctx context.Context, hostVeth, alias string) error {
	h, err := netlinks.Open(ctx)
	if err != nil {
		return err
	}
	defer h.Close()
	link, err := h.LinkByName(hostVeth)
	if err != nil {
		return fmt.Errorf("find %s: %w", hostVeth, err)
	}
	return setAlias(h, link, alias)
}

// List returns the aliases of the host's devices by name; empty for a device without one.
func (Links) List(ctx context.Context) (map[string]string, error) {
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

// Verify compares the pod's end with the configuration, and returns the differences.
func (Links) Verify(ctx context.Context, pod ns.NetNS, i Interface) error {
	return netlinks.InPod(ctx, pod, func(h netlinksafe.Handle) error {
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
		errs = append(errs, fmt.Errorf("%s has MAC %s, want %s", i.Name, a.HardwareAddr, i.MAC))
	}
	if a.MTU != i.MTU {
		errs = append(errs, fmt.Errorf("%s has MTU %d, want %d", i.Name, a.MTU, i.MTU))
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
			errs = append(errs, fmt.Errorf("%s has no address %s", i.Name, want))
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
			errs = append(errs, fmt.Errorf("%s has no route to %s", i.Name, r.To))
		} else if got := routes[at].MTU; got != i.RouteMTU {
			errs = append(errs, fmt.Errorf("%s has MTU %d on its route to %s, want %d (0 is none)", i.Name, got, r.To, i.RouteMTU))
		}
	}
	return errors.Join(errs...)
}
