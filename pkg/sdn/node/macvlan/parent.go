package macvlan

import (
	"context"
	"fmt"
	"net"
	"slices"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/netlinks"
)

// ParentError reports that an interface of the host can't be the parent of a pod's macvlan interface, with the remedy.
type ParentError struct {
	Parent string // name of the interface; "" if the node has none
	Cause  string
	Err    error // of the kernel; nil: none
}

func (e *ParentError) Error() string {
	text := e.Cause
	if e.Parent != "" {
		text = e.Parent + ": " + text
	}
	if e.Err != nil {
		text += fmt.Sprintf(" (%v)", e.Err)
	}
	return text
}

// Unwrap returns the error of the kernel.
func (e *ParentError) Unwrap() error { return e.Err }

// maxLevels bounds the interfaces below a parent: the kernel has at most 8 (MAX_NEST_DEV in linux/netdevice.h).
const maxLevels = 8

// DefaultParent returns the interface of the host's IPv4 default route with the lowest metric. It returns a *ParentError if Parent would, or if the route is ambiguous.
func (l Links) DefaultParent(ctx context.Context, inPodNetwork func(name string) bool) (string, error) {
	h, err := netlinks.Open(ctx)
	if err != nil {
		return "", err
	}
	defer h.Close()
	routes, err := h.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{}, netlink.RT_FILTER_DST)
	if err != nil {
		return "", fmt.Errorf("list the node's default routes: %w", err)
	}
	indexes := outputs(routes)
	switch len(indexes) {
	case 0:
		return "", &ParentError{Cause: "the node has no IPv4 default route; set the annotation to the name of an interface"}
	case 1:
	default:
		return "", &ParentError{Cause: "the node's default route has several interfaces; set the annotation to the name of one"}
	}
	link, err := h.LinkByIndex(indexes[0])
	if err != nil {
		return "", fmt.Errorf("find the interface of the node's default route: %w", err)
	}
	return validate(h, link, inPodNetwork)
}

// outputs returns the indexes of the interfaces of the routes with the lowest metric, each once.
func outputs(routes []netlink.Route) (indexes []int) {
	routes = slices.DeleteFunc(routes, func(r netlink.Route) bool { return r.Type != unix.RTN_UNICAST })
	for _, r := range routes {
		if slices.ContainsFunc(routes, func(other netlink.Route) bool { return other.Priority < r.Priority }) {
			continue
		}
		if len(r.MultiPath) == 0 {
			indexes = append(indexes, r.LinkIndex)
		}
		for _, hop := range r.MultiPath {
			indexes = append(indexes, hop.LinkIndex)
		}
	}
	slices.Sort(indexes)
	return slices.Compact(indexes)
}

// Parent returns the name if the host has an interface of that name that can be a parent, else a *ParentError. inPodNetwork reports whether the pod network has
// an interface of a name: a pod on one of these would have the node's or another pod's place in the network.
func (l Links) Parent(ctx context.Context, name string, inPodNetwork func(name string) bool) (string, error) {
	h, err := netlinks.Open(ctx)
	if err != nil {
		return "", err
	}
	defer h.Close()
	link, err := find(h, name)
	if err != nil {
		return "", err
	}
	if own := link.Attrs().Name; own != name { // an alternative name (ip-link(8), altname)
		return "", &ParentError{Parent: name, Cause: fmt.Sprintf("it is an alternative name; set the annotation to the interface's name %s", own)}
	}
	return validate(h, link, inPodNetwork)
}

func find(h netlinksafe.Handle, name string) (netlink.Link, error) {
	link, err := h.LinkByName(name)
	if isNotFound(err) {
		return nil, &ParentError{Parent: name, Cause: `the node has no interface of that name; set "true" for the interface of its default route, or the name of one of its interfaces`}
	}
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", name, err)
	}
	return link, nil
}

// validate refuses loopback interfaces, those of the pod network, those on top of one of the pod network, such as VLANs of tun0, and bridges and bonds that contain
// one.
func validate(h netlinksafe.Handle, parent netlink.Link, inPodNetwork func(name string) bool) (string, error) {
	name := parent.Attrs().Name
	if parent.Attrs().Flags&net.FlagLoopback != 0 {
		return "", &ParentError{Parent: name, Cause: "it is a loopback interface, which can't be the parent of a macvlan interface; name an Ethernet interface"}
	}
	links, err := h.LinkList()
	if err != nil {
		return "", fmt.Errorf("list the node's interfaces: %w", err)
	}
	link := parent
	for range maxLevels {
		if inPodNetwork(link.Attrs().Name) {
			return "", &ParentError{Parent: name, Cause: fmt.Sprintf("%s belongs to the pod network and can't be the parent of a macvlan interface; name an interface of another network of the node", link.Attrs().Name)}
		}
		if i := slices.IndexFunc(links, func(l netlink.Link) bool {
			return l.Attrs().MasterIndex == link.Attrs().Index && inPodNetwork(l.Attrs().Name)
		}); i >= 0 {
			return "", &ParentError{Parent: name, Cause: fmt.Sprintf("%s contains %s of the pod network and can't be the parent of a macvlan interface; name an interface of another network of the node",
				link.Attrs().Name, links[i].Attrs().Name)}
		}
		if link.Attrs().ParentIndex == 0 || link.Attrs().NetNsID >= 0 { // in another network namespace, as the peer of a veth
			break
		}
		lower, err := h.LinkByIndex(link.Attrs().ParentIndex)
		if err != nil {
			return "", fmt.Errorf("find the interface below %s: %w", link.Attrs().Name, err)
		}
		link = lower
	}
	return name, nil
}
