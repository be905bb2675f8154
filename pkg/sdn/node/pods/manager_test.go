package pods

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/veth"
)

func add(t testing.TB, a *agent, req *cniserver.Request) *current.Result {
	t.Helper()
	result, err := a.Add(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	return result
}

func del(t testing.TB, a *agent, req *cniserver.Request) {
	t.Helper()
	if err := a.Del(t.Context(), req); err != nil {
		t.Fatal(err)
	}
}

func (n *node) wantClean(t testing.TB) {
	t.Helper()
	if found := n.residue(t); len(found) > 0 {
		t.Errorf("got residue on the node, want none:\n%s", strings.Join(found, "\n"))
	}
}

func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func code(err error) uint {
	var e *types.Error
	switch {
	case err == nil:
		return 0
	case errors.As(err, &e):
		return e.Code
	default:
		return types.ErrInternal
	}
}

func TestAdd(t *testing.T) {
	n := newNode(t)
	a, _ := n.start(t)
	pod := newNetns(t)
	req := n.addPod("web", pod)
	got := add(t, a, req)

	hostVeth := sandbox.Attachment{Sandbox: req.ContainerID, IfName: "eth0"}.HostVeth()
	address := veth.IPNet(netip.MustParsePrefix("10.128.2.2/23"))
	want := &current.Result{
		CNIVersion: "1.1.0",
		Interfaces: []*current.Interface{
			{Name: hostVeth, Mtu: 1450},
			{Name: "eth0", Mac: "0a:58:0a:80:02:02", Mtu: 1450, Sandbox: req.Netns},
		},
		IPs: []*current.IPConfig{{Interface: current.Int(1), Address: address, Gateway: netip.MustParseAddr("10.128.2.1").AsSlice()}},
		Routes: []*types.Route{
			{Dst: veth.IPNet(netip.MustParsePrefix("10.128.0.0/14"))},
			{Dst: veth.IPNet(netip.MustParsePrefix("224.0.0.0/4"))},
			{Dst: veth.IPNet(netip.MustParsePrefix("172.30.0.0/16")), GW: netip.MustParseAddr("10.128.2.1").AsSlice()},
			{Dst: veth.IPNet(netip.MustParsePrefix("0.0.0.0/0")), GW: netip.MustParseAddr("10.128.2.1").AsSlice()},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("result (-want +got):\n%s", diff)
	}

	wantInterface(t, pod)
	ports, err := n.bridge.ListPorts(t.Context())
	noError(t, err)
	wantPorts := []ovs.Port{{Name: hostVeth, OFPort: 32770, ExternalIDs: map[string]string{
		"sandbox": req.ContainerID, "ifname": "eth0", "netns": req.Netns,
		"pod-namespace": "default", "pod-name": "web", "pod-uid": "uid-of-web",
		"ip": "10.128.2.2", "mac": "0a:58:0a:80:02:02",
	}}}
	if diff := cmp.Diff(wantPorts, ports); diff != "" {
		t.Errorf("ports (-want +got):\n%s", diff)
	}
	if flows := n.flows(); len(flows) == 0 {
		t.Error("got no flows")
	}
	if pods := a.Pods(); len(pods) != 1 || pods[0].Name != "web" || pods[0].OFPort != 32770 {
		t.Errorf("Pods: got %+v, want web with OpenFlow port 32770", pods)
	}
	checkReq := check(t, req, got)
	if err := a.Check(t.Context(), checkReq); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	// A second ADD of the same sandbox is an error, and changes nothing.
	if _, err := a.Add(t.Context(), req); code(err) != types.ErrInvalidEnvironmentVariables {
		t.Errorf("second ADD: got %v, want code %d", err, types.ErrInvalidEnvironmentVariables)
	}
	if err := a.Check(t.Context(), checkReq); err != nil {
		t.Errorf("CHECK after a second ADD: %v", err)
	}

	del(t, a, req)
	n.wantClean(t)
}

func TestDel(t *testing.T) {
	n := newNode(t)
	a, _ := n.start(t)
	pod := newNetns(t)
	req := n.addPod("web", pod)
	checkReq := check(t, req, add(t, a, req))
	for range 2 {
		del(t, a, req)
		n.wantClean(t)
	}
	if got := devices(t, pod); !slices.Equal(got, []string{"lo"}) {
		t.Errorf("devices in the pod: got %v, want lo only", got)
	}
	if err := a.Check(t.Context(), checkReq); code(err) != types.ErrUnknownContainer {
		t.Errorf("CHECK after DEL: got %v, want code %d", err, types.ErrUnknownContainer)
	}
	if pods := a.Pods(); len(pods) != 0 {
		t.Errorf("Pods: got %+v, want none", pods)
	}
}

// wantInterface checks the interface in the pod's network namespace.
func wantInterface(t *testing.T, pod ns.NetNS) {
	t.Helper()
	if err := pod.Do(func(ns.NetNS) error {
		link, err := netlinksafe.LinkByName("eth0")
		if err != nil {
			return err
		}
		if a := link.Attrs(); a.MTU != 1450 || a.HardwareAddr.String() != "0a:58:0a:80:02:02" || a.OperState != netlink.OperUp {
			t.Errorf("eth0: got MTU %d, MAC %s, state %s", a.MTU, a.HardwareAddr, a.OperState)
		}
		lo, err := netlinksafe.LinkByName("lo")
		if err != nil {
			return err
		}
		var got []string
		for _, l := range []netlink.Link{link, lo} {
			addrs, err := netlinksafe.AddrList(l, netlink.FAMILY_ALL)
			if err != nil {
				return err
			}
			for _, addr := range addrs {
				got = append(got, l.Attrs().Name+" "+addr.IPNet.String())
			}
		}
		// The pod has no link-local IPv6 address, whose duplicate address detection takes a second, but has ::1.
		if diff := cmp.Diff([]string{"eth0 10.128.2.2/23", "lo 127.0.0.1/8", "lo ::1/128"}, got); diff != "" {
			t.Errorf("addresses (-want +got):\n%s", diff)
		}
		routes, err := netlinksafe.RouteList(link, netlink.FAMILY_V4)
		if err != nil {
			return err
		}
		got = nil
		for _, r := range routes {
			got = append(got, fmt.Sprintf("%s via %v %s", r.Dst, r.Gw, r.Scope))
		}
		want := []string{
			"0.0.0.0/0 via 10.128.2.1 universe",
			"10.128.0.0/14 via <nil> link",
			"172.30.0.0/16 via 10.128.2.1 universe",
			"224.0.0.0/4 via <nil> link",
		}
		if diff := cmp.Diff(want, got, cmpopts.SortSlices(strings.Compare)); diff != "" {
			t.Errorf("routes (-want +got):\n%s", diff)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

func TestAdd_invalid(t *testing.T) {
	n := newNode(t)
	a, _ := n.start(t)
	pod := newNetns(t)
	good := *n.addPod("web", pod)
	n.api["default/static-node1"] = staticPod()
	file := t.TempDir() + "/file"
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	args := func(name, uid string) func(*cniserver.Request) {
		return func(r *cniserver.Request) { r.Args = argsOf(name, uid) }
	}
	for _, tt := range []struct {
		name   string
		change func(*cniserver.Request)
		code   uint
		text   string
	}{
		{"no CNI_ARGS", func(r *cniserver.Request) { r.Args = "" }, types.ErrInvalidEnvironmentVariables, "are required"},
		{"another sandbox", func(r *cniserver.Request) { r.ContainerID = "other" }, types.ErrInvalidEnvironmentVariables, "CNI_CONTAINERID is \"other\""},
		{"not in the API", args("ghost", "x"), types.ErrUnknownContainer, "pod default/ghost of node node1 does not exist in the Kubernetes API"},
		{"API does not answer", args("unreachable", "x"), types.ErrTryAgainLater, "node node1 failed to get pod default/unreachable"},
		{"replaced", args("web", "uid-of-predecessor"), types.ErrUnknownContainer, "UID of the sandbox is uid-of-predecessor, UID in the Kubernetes API is uid-of-web"},
		{"static pod with another hash", args("static-node1", "before"), types.ErrUnknownContainer, "replaced"},
		{"netns missing", func(r *cniserver.Request) { r.Netns = "/run/netns/none" }, types.ErrInvalidNetNS, "/run/netns/none"},
		{"netns is a file", func(r *cniserver.Request) { r.Netns = file }, types.ErrInvalidNetNS, file + " is not a network namespace"},
		{"netns is the node's", func(r *cniserver.Request) { r.Netns = "/proc/thread-self/ns/net" }, types.ErrInvalidNetNS, "is the node's network namespace"},
		{"netns is a mount namespace", func(r *cniserver.Request) { r.Netns = "/proc/self/ns/mnt" }, types.ErrInvalidNetNS, "/proc/self/ns/mnt is not a network namespace"},
		{"netns is a file in /proc", func(r *cniserver.Request) { r.Netns = "/proc/version" }, types.ErrInvalidNetNS, "/proc/version is not a network namespace"},
		{"interface exists", func(r *cniserver.Request) { r.IfName = "lo" }, types.ErrInternal, "already has an interface lo"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			req := good
			tt.change(&req)
			_, err := a.Add(t.Context(), &req)
			if code(err) != tt.code || err == nil || !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got code %d, want %d with %q: %v", code(err), tt.code, tt.text, err)
			}
			n.wantClean(t)
		})
	}
}

// For a static pod the runtime passes the UID of the mirror pod's annotations, which all later mirrors have too.
func TestAdd_staticPod(t *testing.T) {
	n := newNode(t)
	a, _ := n.start(t)
	req := n.addPod("web", newNetns(t))
	n.api["default/static-node1"] = staticPod()
	req.Args = argsOf("static-node1", "static")
	add(t, a, req)
	if pods := a.Pods(); len(pods) != 1 || pods[0].UID != "static" {
		t.Errorf("Pods: got %+v, want one with UID static", pods)
	}
	del(t, a, req)
	n.wantClean(t)
}

func TestAdd_withoutUID(t *testing.T) {
	n := newNode(t)
	a, _ := n.start(t)
	req := n.addPod("web", newNetns(t))
	req.Args = "K8S_POD_NAMESPACE=default;K8S_POD_NAME=web"
	add(t, a, req)
	del(t, a, req)
	n.wantClean(t)
}

func staticPod() *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: "static-node1", UID: "mirror",
		Annotations: map[string]string{"kubernetes.io/config.mirror": "static", "kubernetes.io/config.hash": "static"},
	}}
}

// argsOf returns CNI_ARGS of a pod in namespace default.
func argsOf(name, uid string) string {
	return "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=" + name + ";K8S_POD_UID=" + uid
}

func TestAdd_noFreeAddress(t *testing.T) {
	n := newNode(t)
	n.options.Subnets = []netip.Prefix{netip.MustParsePrefix("10.128.2.0/30")} // one address
	a, _ := n.start(t)
	first := n.addPod("first", newNetns(t))
	second := n.addPod("second", newNetns(t))
	add(t, a, first)
	_, err := a.Add(t.Context(), second)
	if code(err) != types.ErrTryAgainLater || !strings.Contains(err.Error(), "node node1 has no free address") {
		t.Errorf("ADD without a free address: got %v, want code %d", err, types.ErrTryAgainLater)
	}
	del(t, a, first)
	add(t, a, second)
	del(t, a, second)
	n.wantClean(t)
}

func TestDel_withoutNetns(t *testing.T) {
	n := newNode(t)
	a, _ := n.start(t)
	pod := newNetns(t)
	req := n.addPod("web", pod)
	add(t, a, req)
	if err := pod.Close(); err != nil {
		t.Fatal(err)
	}
	req.Netns, req.Args = "", ""
	del(t, a, req)
	n.wantClean(t)
}
