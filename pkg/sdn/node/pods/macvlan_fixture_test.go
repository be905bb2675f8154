package pods

import (
	"context"
	"net"
	"testing"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	networkv1 "github.com/openshift/api/network/v1"
	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/macvlan"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
)

// hostMacvlans calls macvlan.Links in the node's network namespace.
type hostMacvlans struct {
	host ns.NetNS
	macvlan.Links
}

func (l hostMacvlans) DefaultParent(ctx context.Context, inPodNetwork func(string) bool) (parent string, err error) {
	err = l.host.Do(func(ns.NetNS) error {
		parent, err = l.Links.DefaultParent(ctx, inPodNetwork)
		return err
	})
	return parent, err
}

func (l hostMacvlans) Parent(ctx context.Context, name string, inPodNetwork func(string) bool) (parent string, err error) {
	err = l.host.Do(func(ns.NetNS) error {
		parent, err = l.Links.Parent(ctx, name, inPodNetwork)
		return err
	})
	return parent, err
}

func (l hostMacvlans) Create(ctx context.Context, pod ns.NetNS, i macvlan.Interface, parent string) error {
	return l.host.Do(func(ns.NetNS) error { return l.Links.Create(ctx, pod, i, parent) })
}

type faultyMacvlans struct {
	Macvlans
	*faults
}

func (l faultyMacvlans) Create(ctx context.Context, pod ns.NetNS, i macvlan.Interface, parent string) error {
	return l.around("macvlan", func() error { return l.Macvlans.Create(ctx, pod, i, parent) })
}

func (l faultyMacvlans) Delete(ctx context.Context, pod ns.NetNS, i macvlan.Interface) error {
	return l.around("delete macvlan", func() error { return l.Macvlans.Delete(ctx, pod, i) })
}

// The node's uplink, and the other end of its cable.
const (
	uplinkName = "eth1"
	lanName    = "lan0"
	lanAddr    = "192.0.2.1"
)

// addLAN connects the node by uplinkName to a network, whose namespace it returns with lanAddr.
func addLAN(t testing.TB, host ns.NetNS) ns.NetNS {
	t.Helper()
	lan := newNetns(t)
	inNetns(t, host, func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = uplinkName
		veth := netlink.NewVeth(attrs)
		veth.PeerName, veth.PeerNamespace = lanName, netlink.NsFd(lan.Fd())
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		return netlink.LinkSetUp(veth)
	})
	setAddr(t, lan, lanName, lanAddr)
	inNetns(t, lan, func() error {
		tool, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer tool.Close()
		return tool.Change(lanName, map[string]bool{"tx-checksum-ip-generic": false}) // see podinterface.Options.InterfaceConfig
	})
	return lan
}

// setAddr sets an interface up with an address of the network of addLAN.
func setAddr(t testing.TB, netns ns.NetNS, name, addr string) {
	t.Helper()
	inNetns(t, netns, func() error {
		link, err := netlinksafe.LinkByName(name)
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: net.ParseIP(addr), Mask: net.CIDRMask(24, 32)}}); err != nil {
			return err
		}
		return netlink.LinkSetUp(link)
	})
}

// addDefaultRoute adds a default route by the interface.
func addDefaultRoute(t testing.TB, netns ns.NetNS, name string, metric int) {
	t.Helper()
	inNetns(t, netns, func() error {
		link, err := netlinksafe.LinkByName(name)
		if err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Scope: netlink.SCOPE_LINK, Priority: metric, Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}})
	})
}

// addLink adds a device and sets it up.
func addLink(t testing.TB, netns ns.NetNS, link netlink.Link) {
	t.Helper()
	inNetns(t, netns, func() error {
		if err := netlink.LinkAdd(link); err != nil {
			return err
		}
		return netlink.LinkSetUp(link)
	})
}

// addDevice adds an Ethernet device of the name: a bridge, which every kernel has.
func addDevice(t testing.TB, netns ns.NetNS, name string) netlink.Link {
	t.Helper()
	link := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: name}}
	addLink(t, netns, link)
	return link
}

// onTop returns the attributes of a device on top of another one.
func onTop(t testing.TB, netns ns.NetNS, name, lower string) netlink.LinkAttrs {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	inNetns(t, netns, func() error {
		link, err := netlinksafe.LinkByName(lower)
		if err == nil {
			attrs.ParentIndex = link.Attrs().Index
		}
		return err
	})
	return attrs
}

func inNetns(t testing.TB, netns ns.NetNS, f func() error) {
	t.Helper()
	noError(t, netns.Do(func(ns.NetNS) error { return f() }))
}

// addMacvlanPod adds a privileged pod with the annotation to the API, and returns the ADD request for it.
func (n *node) addMacvlanPod(name string, netns ns.NetNS, value string) *cniserver.Request {
	req := n.addPod(name, netns)
	yes := true
	object := n.api["default/"+name]
	object.Annotations = map[string]string{networkv1.AssignMacvlanAnnotation: value}
	object.Spec.Containers = []corev1.Container{{Name: "router", SecurityContext: &corev1.SecurityContext{Privileged: &yes}}}
	return req
}

// macvlanOfPod returns the pod's macvlan interface.
func macvlanOfPod(t testing.TB, pod ns.NetNS) *netlink.Macvlan {
	t.Helper()
	var found *netlink.Macvlan
	inNetns(t, pod, func() error {
		link, err := netlinksafe.LinkByName(sandbox.MacvlanName)
		if err != nil {
			return err
		}
		var ok bool
		if found, ok = link.(*netlink.Macvlan); !ok {
			t.Fatalf("got a %s, want a macvlan", link.Type())
		}
		return nil
	})
	return found
}

// listed are pods that the cache has, as it has them: without security contexts.
type listed struct {
	api
	cached map[string]*corev1.Pod
}

func (l listed) Cached(namespace, name string) *corev1.Pod { return l.cached[namespace+"/"+name] }
