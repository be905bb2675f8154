package pods

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/test/tier"
)

// refusal is an ADD that fails since the pod can't have a macvlan interface.
type refusal struct {
	value string
	edit  func(pod *corev1.Pod, req *cniserver.Request)
	want  string // part of the error, with the remedy
}

func refusals() map[string]refusal {
	yes, no := true, false
	value := func(value, want string) refusal { return refusal{value: value, want: want} }
	return map[string]refusal{
		"empty":                  value("", `"" asks for; the value is not a name`),
		"16 characters":          value(strings.Repeat("x", 16), "the value is not a name of 1 to 15 characters"),
		"a slash":                value("../"+uplinkName, `set "true"`),
		"an empty field":         value("-", "the value is not a name"),
		"a zero byte":            value("br0\x00x", "the value is not a name"),
		"very long":              value(strings.Repeat("x", 1<<18), "the value is not a name"),
		"yes":                    value("yes", "yes: the node has no interface of that name"),
		"no such interface":      value("eth77", `eth77: the node has no interface of that name; set "true"`),
		"loopback":               value("lo", "lo: it is a loopback interface"),
		"the bridge":             value("br0", "br0 belongs to the pod network"),
		"the gateway":            value("tun0", "tun0 belongs to the pod network"),
		"a port of the bridge":   value("foreign", "foreign belongs to the pod network"),
		"a macvtap on it":        value("mvtap1", "mvtap1: tun0 belongs to the pod network"),
		"a macvlan on it":        value("mv1", "mv1: tun0 belongs to the pod network"),
		"a pod's host veth":      value("veth0123456789a", "belongs to the pod network"),
		"a tunnel of the switch": value("vxlan_sys_4789", "belongs to the pod network"),
		"a bridge of a port":     value("brtun", "brtun contains member of the pod network"),
		"a VLAN of that bridge":  value("mvbr", "mvbr: brtun contains member of the pod network"),
		"in a bridge":            value("slave0", "slave0: the kernel refuses it"),
		"no Ethernet":            value("ppp0", "ppp0: the kernel refuses it"),
		"an alternative name":    value("wan", "wan: it is an alternative name; set the annotation to the interface's name "+uplinkName),
		"no default route":       value("true", "the node has no IPv4 default route; set the annotation to the name of an interface"),
		"not privileged": {uplinkName, func(pod *corev1.Pod, _ *cniserver.Request) { pod.Spec.Containers[0].SecurityContext.Privileged = &no },
			"no container of the pod is privileged; set securityContext.privileged"},
		"no security context": {uplinkName, func(pod *corev1.Pod, _ *cniserver.Request) { pod.Spec.Containers[0].SecurityContext = nil }, "no container of the pod is privileged"},
		"user namespace":      {uplinkName, func(pod *corev1.Pod, _ *cniserver.Request) { pod.Spec.HostUsers = &no }, "hostUsers"},
		"no UID": {uplinkName, func(pod *corev1.Pod, req *cniserver.Request) {
			req.Args = strings.ReplaceAll(req.Args, ";K8S_POD_UID="+string(pod.UID), "")
		}, "K8S_POD_UID"},
		"privileged by ephemeral container": {uplinkName, func(pod *corev1.Pod, _ *cniserver.Request) {
			pod.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon(pod.Spec.Containers[0])}}
			pod.Spec.EphemeralContainers[0].SecurityContext = &corev1.SecurityContext{Privileged: &yes}
			pod.Spec.Containers[0].SecurityContext = nil
		}, "no container of the pod is privileged"},
	}
}

// A pod that can't have the interface does not start: ADD fails with its own code and an Event with the remedy, and leaves nothing.
func TestMacvlan_refused(t *testing.T) {
	tier.Parallel(t)
	n := newNode(t)
	addLAN(t, n.host)
	inNetns(t, n.host, func() error {
		uplink, err := netlinksafe.LinkByName(uplinkName)
		if err != nil {
			return err
		}
		return netlink.LinkAddAltName(uplink, "wan")
	})
	for _, name := range []string{"br0", "tun0", "foreign", "vxlan_sys_4789"} {
		addDevice(t, n.host, name)
	}
	addLink(t, n.host, &netlink.Macvlan{LinkAttrs: onTop(t, n.host, "mv1", "tun0"), Mode: netlink.MACVLAN_MODE_BRIDGE})
	addLink(t, n.host, &netlink.Macvtap{Macvlan: netlink.Macvlan{LinkAttrs: onTop(t, n.host, "mvtap1", "tun0"), Mode: netlink.MACVLAN_MODE_BRIDGE}})
	member := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "member"}, Mode: netlink.TUNTAP_MODE_TAP, Flags: netlink.TUNTAP_NO_PI}
	addLink(t, n.host, member)
	inNetns(t, n.host, func() error { return netlink.LinkSetMaster(member, addDevice(t, n.host, "brtun")) })
	addLink(t, n.host, &netlink.Macvlan{LinkAttrs: onTop(t, n.host, "mvbr", "brtun"), Mode: netlink.MACVLAN_MODE_BRIDGE})
	slave := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "slave0"}, Mode: netlink.TUNTAP_MODE_TAP, Flags: netlink.TUNTAP_NO_PI}
	addLink(t, n.host, slave)
	inNetns(t, n.host, func() error { return netlink.LinkSetMaster(slave, addDevice(t, n.host, "cbr")) })
	addLink(t, n.host, &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "ppp0"}, Mode: netlink.TUNTAP_MODE_TUN, Flags: netlink.TUNTAP_NO_PI})
	a, _ := n.start(t)
	a.bridge = withForeignPort{a.bridge}
	before := devices(t, n.host)
	const hostVeth = "veth0123456789a"
	for name, tc := range refusals() {
		t.Run(name, func(t *testing.T) {
			pod := newNetns(t)
			pods := fmt.Sprintf("pod-%x", name)
			req := n.addMacvlanPod(pods, pod, tc.value)
			if tc.edit != nil {
				tc.edit(n.api["default/"+pods], req)
			}
			if tc.value == hostVeth {
				link := addDevice(t, n.host, hostVeth)
				defer inNetns(t, n.host, func() error { return netlink.LinkDel(link) })
			}
			for range 2 {
				if _, err := a.Add(t.Context(), req); code(err) != ErrMacvlanRefused || !strings.Contains(err.Error(), tc.want) || len(err.Error()) > 600 {
					t.Errorf("ADD: got %v, want code %d with %q", err, ErrMacvlanRefused, tc.want)
				}
			}
			if got := a.events.count("pod " + pods + ": " + eventreason.NetworkAttachFailed + ": pod default/" + pods + " can't have the macvlan interface"); got != 2 {
				t.Errorf("got %d Events, want one for each ADD:\n%s", got, a.events)
			}
			if got := devices(t, pod); !slices.Equal(got, []string{"lo"}) {
				t.Errorf("got devices %v in the pod, want lo only", got)
			}
			del(t, a, req)
		})
	}
	n.wantClean(t)
	if after := devices(t, n.host); !slices.Equal(after, before) {
		t.Errorf("got devices %v on the node, want %v", after, before)
	}
}

// The default route has no interface that a pod may use.
func TestMacvlan_defaultRoute(t *testing.T) {
	for name, want := range map[string]string{"tun0": "tun0 belongs to the pod network", "two": "the node's default route has several interfaces"} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			addDevice(t, n.host, "tun0")
			addDevice(t, n.host, "second")
			if name == "two" {
				inNetns(t, n.host, func() error {
					var hops []*netlink.NexthopInfo
					for _, name := range []string{"tun0", "second"} {
						link, err := netlinksafe.LinkByName(name)
						if err != nil {
							return err
						}
						hops = append(hops, &netlink.NexthopInfo{LinkIndex: link.Attrs().Index})
					}
					return netlink.RouteAdd(&netlink.Route{MultiPath: hops, Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}})
				})
			} else {
				addDefaultRoute(t, n.host, name, 0)
			}
			a, _ := n.start(t)
			if _, err := a.Add(t.Context(), n.addMacvlanPod("router", newNetns(t), "true")); code(err) != ErrMacvlanRefused || !strings.Contains(err.Error(), want) {
				t.Errorf("ADD: got %v, want %q", err, want)
			}
			n.wantClean(t)
		})
	}
}

// withForeignPort has ports of another program.
type withForeignPort struct{ Switch }

func (s withForeignPort) ListPorts(ctx context.Context) ([]ovs.Port, error) {
	ports, err := s.Switch.ListPorts(ctx)
	return append(ports, ovs.Port{Name: "foreign", OFPort: 9}, ovs.Port{Name: "member", OFPort: 10}), err
}
