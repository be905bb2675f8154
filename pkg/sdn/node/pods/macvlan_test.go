package pods

import (
	"errors"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/google/go-cmp/cmp"
	networkv1 "github.com/openshift/api/network/v1"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
	"github.com/ovsdn/ovsdn/test/tier"
)

// A privileged pod gets macvlan0 on the interface of the default route or on the one that it names: in mode private, up and without an address, with routes to
// the parent's addresses by eth0. A restarted agent knows it, CHECK finds it, and DEL deletes it from a namespace that remains.
func TestMacvlan(t *testing.T) {
	tier.Parallel(t)
	for _, value := range []string{"true", uplinkName} {
		t.Run(value, func(t *testing.T) {
			n := newNode(t)
			addLAN(t, n.host)
			addDevice(t, n.host, "other")
			addDefaultRoute(t, n.host, "other", 200)
			addDefaultRoute(t, n.host, uplinkName, 100)
			setAddr(t, n.host, uplinkName, "192.0.2.2")
			setAddr(t, n.host, uplinkName, "192.0.2.3")
			n.options.RouteMTU = 1400
			before := devices(t, n.host)
			a, stop := n.start(t)
			pod := newNetns(t)
			req := n.addMacvlanPod("router", pod, value)
			result := add(t, a, req)

			link := macvlanOfPod(t, pod)
			mac := sandbox.Attachment{Sandbox: req.ContainerID, IfName: "eth0"}.MacvlanMAC()
			if link.Mode != netlink.MACVLAN_MODE_PRIVATE || link.Flags&net.FlagUp == 0 || link.HardwareAddr.String() != mac.String() || link.MTU != 1500 {
				t.Errorf("got mode %v, flags %s, MAC %s, MTU %d, want private, up, %s, 1500", link.Mode, link.Flags, link.HardwareAddr, link.MTU, mac)
			}
			inNetns(t, pod, func() error {
				addrs, err := netlinksafe.AddrList(link, netlink.FAMILY_ALL)
				if len(addrs) > 0 {
					t.Errorf("got addresses %v, want none", addrs)
				}
				return err
			})
			for _, addr := range []string{"192.0.2.2", "192.0.2.3"} {
				want := addr + " via 10.128.2.1 dev eth0 mtu 1400"
				if got := strings.Join(strings.Fields(run(t, pod, "ip -4 route show exact "+addr)), " "); got != want {
					t.Errorf("got route %q, want %q", got, want)
				}
			}
			inNetns(t, n.host, func() error {
				parent, err := netlinksafe.LinkByName(uplinkName)
				if err == nil && parent.Attrs().Index != link.ParentIndex {
					t.Errorf("got parent %d, want %s", link.ParentIndex, uplinkName)
				}
				return err
			})
			want := &current.Interface{Name: "macvlan0", Mac: mac.String(), Sandbox: req.Netns}
			if len(result.Interfaces) != 3 || !cmp.Equal(result.Interfaces[2], want) {
				t.Errorf("got interfaces %v of the result, want %v last", result.Interfaces, want)
			}
			ports, err := n.bridge.ListPorts(t.Context())
			noError(t, err)
			if len(ports) != 1 || ports[0].ExternalIDs[sandbox.IDMacvlan] != uplinkName {
				t.Errorf("got ports %v, want one with the parent", ports)
			}
			stop()
			a, _ = n.start(t)
			noError(t, a.Check(t.Context(), check(t, req, result)))
			if pods := a.Pods(); len(pods) != 1 || pods[0].Macvlan != uplinkName {
				t.Errorf("got pods %+v after a restart, want one with the parent", pods)
			}
			del(t, a, req)
			n.wantClean(t)
			if got := devices(t, pod); !slices.Equal(got, []string{"lo"}) {
				t.Errorf("got devices %v in the pod, want lo only", got)
			}
			if after := devices(t, n.host); !slices.Equal(after, before) {
				t.Errorf("got devices %v on the node, want %v", after, before)
			}
		})
	}
}

// The node loses OVSDB: the port is rebuilt from the alias, and CHECK expects the interface.
func TestMacvlan_rebuilt(t *testing.T) {
	n := newNode(t)
	addLAN(t, n.host)
	a, stop := n.start(t)
	pod := newNetns(t)
	req := n.addMacvlanPod("router", pod, uplinkName)
	result := add(t, a, req)
	noError(t, n.bridge.DeletePort(t.Context(), sandbox.Attachment{Sandbox: req.ContainerID, IfName: "eth0"}.HostVeth()))
	stop()
	a, _ = n.start(t)
	noError(t, a.Check(t.Context(), check(t, req, result)))
	inNetns(t, pod, func() error { return netlink.LinkDel(macvlanOfPod(t, pod)) })
	if err := a.Check(t.Context(), check(t, req, result)); code(err) != ErrAttachmentChanged || !strings.Contains(err.Error(), "find macvlan0") {
		t.Errorf("CHECK without the interface: got %v, want code %d", err, ErrAttachmentChanged)
	}
	del(t, a, req)
}

// CHECK finds that the interface is no longer that of ADD.
func TestMacvlan_check(t *testing.T) {
	tier.Parallel(t)
	n := newNode(t)
	addLAN(t, n.host)
	a, _ := n.start(t)
	for name, tc := range map[string]struct {
		change func(pod ns.NetNS) error
		result func(*current.Result)
		want   string
	}{
		"deleted": {change: func(pod ns.NetNS) error { return netlink.LinkDel(macvlanOfPod(t, pod)) }, want: "find macvlan0"},
		"replaced": {change: func(pod ns.NetNS) error {
			return errors.Join(netlink.LinkDel(macvlanOfPod(t, pod)), netlink.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "macvlan0"}}))
		}, want: "macvlan0 is a bridge"},
		"another MAC": {change: func(pod ns.NetNS) error {
			return netlink.LinkSetHardwareAddr(macvlanOfPod(t, pod), net.HardwareAddr{2, 0, 0, 0, 0, 1})
		}, want: "macvlan0 has MAC 02:00:00:00:00:01"},
		"another mode":      {change: func(pod ns.NetNS) error { return setBridgeMode(macvlanOfPod(t, pod)) }, want: "not in mode private"},
		"not in prevResult": {result: func(r *current.Result) { r.Interfaces = r.Interfaces[:2] }, want: "interface macvlan0"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := newNetns(t)
			req := n.addMacvlanPod("router", pod, uplinkName)
			result := add(t, a, req)
			if tc.change != nil {
				inNetns(t, pod, func() error { return tc.change(pod) })
			}
			if tc.result != nil {
				tc.result(result)
			}
			if err := a.Check(t.Context(), check(t, req, result)); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("CHECK: got %v, want %q", err, tc.want)
			}
			del(t, a, req)
			n.wantClean(t)
		})
	}
}

// An egress router replaces the default route by one on macvlan0: CHECK accepts it, and requires the other routes.
func TestMacvlan_checkOfDefaultRoute(t *testing.T) {
	n := newNode(t)
	addLAN(t, n.host)
	a, _ := n.start(t)
	router, plain := newNetns(t), newNetns(t)
	req, plainReq := n.addMacvlanPod("router", router, uplinkName), n.addPod("plain", plain)
	checkReq, checkPlain := check(t, req, add(t, a, req)), check(t, plainReq, add(t, a, plainReq))
	run(t, router, "ip address add 192.0.2.11/24 dev macvlan0; ip route replace default via 192.0.2.1 dev macvlan0")
	noError(t, a.Check(t.Context(), checkReq))
	run(t, router, "ip route delete 172.30.0.0/16")
	if err := a.Check(t.Context(), checkReq); err == nil || !strings.Contains(err.Error(), "no route to 172.30.0.0/16") {
		t.Errorf("CHECK without the route to services: got %v", err)
	}
	run(t, plain, "ip route delete default")
	if err := a.Check(t.Context(), checkPlain); err == nil || !strings.Contains(err.Error(), "no route to 0.0.0.0/0") {
		t.Errorf("CHECK of a pod without a macvlan interface: got %v", err)
	}
	del(t, a, req)
	del(t, a, plainReq)
}

func setBridgeMode(link *netlink.Macvlan) error {
	return netlink.LinkModify(&netlink.Macvlan{LinkAttrs: netlink.LinkAttrs{Name: link.Name, Index: link.Index, TxQLen: -1}, Mode: netlink.MACVLAN_MODE_BRIDGE})
}

// The pod with the sandbox's UID decides, also while the API server is away. A privileged successor of the same name gives nothing to the sandbox of its unprivileged
// predecessor.
func TestMacvlan_decidedByPodOfUID(t *testing.T) {
	n := newNode(t)
	addLAN(t, n.host)
	cache := listed{n.api, map[string]*corev1.Pod{}}
	n.pods = cache
	a, _ := n.start(t)
	pod := newNetns(t)
	req := n.addMacvlanPod("router", pod, uplinkName)
	cached := n.api["default/router"].DeepCopy()
	cache.cached["default/router"] = cached
	delete(n.api, "default/router")
	add(t, a, req)
	macvlanOfPod(t, pod)
	del(t, a, req)
	n.api["default/router"] = cached.DeepCopy()
	delete(cache.cached, "default/router")

	n.api["default/router"].UID = "uid-of-successor"
	if _, err := a.Add(t.Context(), req); code(err) != types.ErrUnknownContainer {
		t.Errorf("ADD of the predecessor's sandbox: got %v, want code %d", err, types.ErrUnknownContainer)
	}
	// Users can write this annotation of kubelet, which only mirrors of static pods have.
	n.api["default/router"].Annotations["kubernetes.io/config.hash"] = "uid-of-router"
	if _, err := a.Add(t.Context(), req); code(err) != types.ErrUnknownContainer {
		t.Errorf("ADD of the predecessor's sandbox with its UID in an annotation of the successor: got %v, want code %d", err, types.ErrUnknownContainer)
	}
	n.api["default/router"].Annotations["kubernetes.io/config.mirror"] = "uid-of-manifest"
	if _, err := a.Add(t.Context(), req); code(err) != ErrMacvlanRefused || !strings.Contains(err.Error(), "uid-of-manifest") {
		t.Errorf("ADD of the predecessor's sandbox with its UID in an annotation of a mirror: got %v, want code %d", err, ErrMacvlanRefused)
	}
	if got := devices(t, pod); slices.Contains(got, sandbox.MacvlanName) {
		t.Errorf("got devices %v of the unprivileged predecessor", got)
	}
	delete(n.api["default/router"].Annotations, "kubernetes.io/config.hash")
	delete(n.api["default/router"].Annotations, "kubernetes.io/config.mirror")
	cache.cached["default/router"] = cached
	// The cache has the predecessor, which does not ask, and the API server the successor, which does.
	delete(cached.Annotations, networkv1.AssignMacvlanAnnotation)
	add(t, a, req)
	if got := devices(t, pod); slices.Contains(got, sandbox.MacvlanName) {
		t.Errorf("got devices %v of a pod that does not ask", got)
	}
	del(t, a, req)
	// CNI_ARGS and the runtime's configuration ask for nothing.
	plain := n.addPod("plain", pod)
	plain.Args += ";" + networkv1.AssignMacvlanAnnotation + "=true"
	plain.Config = []byte(`{"cniVersion":"1.1.0","name":"ovsdn","type":"ovsdn-cni","args":{"cni":{"` + networkv1.AssignMacvlanAnnotation + `":"true"}}}`)
	add(t, a, plain)
	if got := devices(t, pod); slices.Contains(got, sandbox.MacvlanName) {
		t.Errorf("got devices %v of a pod without the annotation", got)
	}
	del(t, a, plain)
	n.wantClean(t)
}

// A changed annotation has no effect on a running pod. Each change has one Event, also one that was made while no agent ran.
func TestMacvlan_annotationChanged(t *testing.T) {
	n := newNode(t)
	addLAN(t, n.host)
	cache := listed{n.api, map[string]*corev1.Pod{}}
	n.pods = cache
	a, stop := n.start(t)
	with, without := newNetns(t), newNetns(t)
	add(t, a, n.addMacvlanPod("with", with, uplinkName))
	add(t, a, n.addPod("without", without))
	change := func(name, value string) {
		t.Helper()
		object := n.api["default/"+name].DeepCopy()
		object.Annotations = map[string]string{networkv1.AssignMacvlanAnnotation: value}
		cache.cached["default/"+name] = object
		for range 2 {
			a.PodChanged(t.Context(), object)
		}
	}
	prefix := func(name, text string) string {
		return "pod " + name + ": " + eventreason.MacvlanUnchanged + ": annotation " + networkv1.AssignMacvlanAnnotation + ": " + text
	}
	change("with", uplinkName)
	change("with", "true") // may be the same interface
	change("without", "false")
	if got := a.events.count("pod "); got != 0 {
		t.Errorf("got Events without a difference:\n%s", a.events)
	}
	change("with", "eth2")
	change("with", "false")
	change("without", "true")
	a.events.want(t, prefix("with", `"eth2" has no effect, and the pod retains its interface macvlan0 on eth1`), prefix("with", "the pod retains its interface macvlan0 on eth1, which"),
		prefix("without", `"true" has no effect, and the pod has no interface macvlan0`))
	macvlanOfPod(t, with)
	if got := devices(t, without); slices.Contains(got, sandbox.MacvlanName) {
		t.Errorf("got devices %v of a pod that asked too late", got)
	}
	replaced := cache.cached["default/without"].DeepCopy()
	replaced.UID, replaced.Annotations = "uid-of-successor", map[string]string{networkv1.AssignMacvlanAnnotation: "eth3"}
	a.PodChanged(t.Context(), replaced)
	if got := a.events.count("pod "); got != 3 {
		t.Errorf("got %d Events, want 3:\n%s", got, a.events)
	}
	stop()
	a, _ = n.start(t)
	a.events.want(t, prefix("with", "the pod retains"), prefix("without", `"true" has no effect`))
}

// The cache can be behind the object that ADD read: an older annotation is no difference.
func TestMacvlan_olderObject(t *testing.T) {
	n := newNode(t)
	addLAN(t, n.host)
	cache := listed{n.api, map[string]*corev1.Pod{}}
	n.pods = cache
	a, _ := n.start(t)
	req := n.addMacvlanPod("router", newNetns(t), uplinkName)
	object := n.api["default/router"]
	object.ResourceVersion = "10"
	version := func(resourceVersion, value string) *corev1.Pod {
		o := object.DeepCopy()
		o.ResourceVersion, o.Annotations = resourceVersion, map[string]string{networkv1.AssignMacvlanAnnotation: value}
		return o
	}
	add(t, a, req)
	a.PodChanged(t.Context(), version("9", "false"))
	a.PodChanged(t.Context(), version("10", uplinkName))
	if got := a.events.count("pod "); got != 0 {
		t.Errorf("got Events of an older object:\n%s", a.events)
	}
	a.PodChanged(t.Context(), version("11", "false"))
	a.events.want(t, "pod router: "+eventreason.MacvlanUnchanged)
	del(t, a, req)
}
