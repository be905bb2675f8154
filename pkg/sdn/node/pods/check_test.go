package pods

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/veth"
	"github.com/ovsdn/ovsdn/test/tier"
)

func TestCheck_changedAttachment(t *testing.T) {
	tier.Parallel(t)
	n := newNode(t)
	a, _ := n.start(t)
	for name, change := range map[string]struct {
		text string
		do   func(pod ns.NetNS, p sandbox.Pod) error
	}{
		"route": {"has no route to 172.30.0.0/16", inPod(func(l netlink.Link) error {
			service := veth.IPNet(netip.MustParsePrefix("172.30.0.0/16"))
			return netlink.RouteDel(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: &service})
		})},
		"address": {"has no address 10.128.2.", inPod(func(l netlink.Link) error {
			addrs, err := netlinksafe.AddrList(l, netlink.FAMILY_V4)
			if err != nil {
				return err
			}
			return netlink.AddrDel(l, &addrs[0])
		})},
		"link": {"eth0 is down", inPod(netlink.LinkSetDown)},
		"MAC": {"has MAC 0a:58:00:00:00:01", inPod(func(l netlink.Link) error {
			return netlink.LinkSetHardwareAddr(l, []byte{0x0a, 0x58, 0, 0, 0, 1})
		})},
		"lease deleted": {"has no lease", func(_ ns.NetNS, p sandbox.Pod) error {
			return os.Remove(n.ipamDir + "/ovsdn/" + p.Addrs[0].String())
		}},
		"lease of another container": {"is leased to eth0 of container \"other\"", func(_ ns.NetNS, p sandbox.Pod) error {
			return os.WriteFile(n.ipamDir+"/ovsdn/"+p.Addrs[0].String(), []byte("other\r\neth0"), 0o600)
		}},
		"port": {"the bridge has no port", func(_ ns.NetNS, p sandbox.Pod) error {
			return n.bridge.DeletePort(t.Context(), p.HostVeth())
		}},
		"external_ids": {`external_ids:pod-uid of port`, func(_ ns.NetNS, p sandbox.Pod) error {
			p.UID = "another"
			port := p.Port()
			port.OFPort = p.OFPort
			_, err := n.bridge.AddPort(t.Context(), port)
			return err
		}},
		"address in use twice": {"has one of the addresses", func(_ ns.NetNS, p sandbox.Pod) error {
			p.Sandbox = "other"
			_, err := n.bridge.AddPort(t.Context(), p.Port())
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			pod := newNetns(t)
			req := n.addPod("web", pod)
			checkReq := check(t, req, add(t, a, req))
			noError(t, a.Check(t.Context(), checkReq))
			noError(t, change.do(pod, a.Pods()[0]))
			err := a.Check(t.Context(), checkReq)
			if code(err) != ErrAttachmentChanged || !strings.Contains(err.Error(), change.text) {
				t.Errorf("got code %d, want %d with %q: %v", code(err), ErrAttachmentChanged, change.text, err)
			}
			del(t, a, req)
			noError(t, n.bridge.DeletePort(t.Context(), sandbox.Attachment{Sandbox: "other", IfName: "eth0"}.HostVeth()))
			noError(t, os.RemoveAll(n.ipamDir+"/ovsdn/10.128.2.2"))
		})
	}
}

func inPod(change func(netlink.Link) error) func(ns.NetNS, sandbox.Pod) error {
	return func(pod ns.NetNS, _ sandbox.Pod) error {
		return pod.Do(func(ns.NetNS) error {
			link, err := netlinksafe.LinkByName("eth0")
			if err != nil {
				return err
			}
			return change(link)
		})
	}
}

// CHECK compares prevResult with the result of ADD.
func TestCheck_wrongPrevResult(t *testing.T) {
	n := newNode(t)
	a, _ := n.start(t)
	req := n.addPod("web", newNetns(t))
	result := add(t, a, req)
	for name, tt := range map[string]struct {
		change func(r *current.Result)
		code   uint
		text   string
	}{
		"the result of ADD": {func(*current.Result) {}, 0, ""},
		"additions of later plugins": {func(r *current.Result) {
			r.Interfaces = append(r.Interfaces, &current.Interface{Name: "ifb0"})
			r.DNS.Nameservers = []string{"10.0.0.10"}
		}, 0, ""},
		"address":    {func(r *current.Result) { r.IPs[0].Address.IP = net.IPv4(10, 128, 2, 99) }, types.ErrInvalidNetworkConfig, "address 10.128.2.2/23 is missing"},
		"no address": {func(r *current.Result) { r.IPs = nil }, types.ErrInvalidNetworkConfig, "address 10.128.2.2/23 is missing"},
		"MAC":        {func(r *current.Result) { r.Interfaces[1].Mac = "0a:58:00:00:00:01" }, types.ErrInvalidNetworkConfig, "interface eth0"},
		"sandbox":    {func(r *current.Result) { r.Interfaces[1].Sandbox = "/run/netns/other" }, types.ErrInvalidNetworkConfig, "interface eth0"},
		"host's end": {func(r *current.Result) { r.Interfaces[0].Name = "lo" }, types.ErrInvalidNetworkConfig, "interface veth"},
	} {
		t.Run(name, func(t *testing.T) {
			prev := new(current.Result)
			text, err := json.Marshal(result)
			noError(t, err)
			noError(t, json.Unmarshal(text, prev))
			tt.change(prev)
			err = a.Check(t.Context(), check(t, req, prev))
			if code(err) != tt.code || err != nil && !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got code %d, want %d with %q: %v", code(err), tt.code, tt.text, err)
			}
		})
	}
	if got := a.events.count("pod web: " + eventreason.NetworkCheckFailed); got != 5 {
		t.Errorf("got %d Events %s, want 5", got, eventreason.NetworkCheckFailed)
	}
	del(t, a, req)
	n.wantClean(t)
}

func TestCheck_invalidPrevResult(t *testing.T) {
	n := newNode(t)
	a, _ := n.start(t)
	req := n.addPod("web", newNetns(t))
	add(t, a, req)
	for prev, want := range map[string]uint{
		``:                                    types.ErrInvalidNetworkConfig,
		`,"prevResult":{"cniVersion":true}`:   types.ErrDecodingFailure,
		`,"prevResult":{"ips":"none"}`:        types.ErrDecodingFailure,
		`,"prevResult":"nothing"`:             types.ErrDecodingFailure,
		`,"prevResult":{"interfaces":[null]}`: types.ErrDecodingFailure,
		`,"prevResult":{}`:                    types.ErrInvalidNetworkConfig,
	} {
		bad := *req
		bad.Config = fmt.Appendf(nil, `{"cniVersion":"1.0.0","name":"ovsdn","type":"ovsdn-cni"%s}`, prev)
		if err := a.Check(t.Context(), &bad); code(err) != want {
			t.Errorf("%s: got code %d, want %d: %v", prev, code(err), want, err)
		}
	}
	del(t, a, req)
	n.wantClean(t)
}

// ADD rejects prevResult, and DEL ignores it.
func TestPrevResult_addAndDel(t *testing.T) {
	n := newNode(t)
	a, _ := n.start(t)
	req := n.addPod("web", newNetns(t))
	add(t, a, req)
	wrong := check(t, req, &current.Result{CNIVersion: "1.1.0", Interfaces: []*current.Interface{{Name: "lo"}}})
	other := n.addPod("other", newNetns(t))
	other.Config = wrong.Config
	if _, err := a.Add(t.Context(), other); code(err) != types.ErrUnsupportedField || !strings.Contains(err.Error(), "prevResult") {
		t.Errorf("ADD with prevResult: got %v, want code %d", err, types.ErrUnsupportedField)
	}
	a.events.want(t, "pod other: "+eventreason.NetworkAttachFailed)
	del(t, a, wrong)
	n.wantClean(t)
}

// If two ports have the same address, an Event on both pods reports it, and the pod with the lease retains its flows.
func TestAddressInUseTwice(t *testing.T) {
	n := newNode(t)
	first, stop := n.start(t)
	holder, other := n.addPod("holder", newNetns(t)), n.addPod("other", newNetns(t))
	holderResult, otherResult := add(t, first, holder), add(t, first, other)
	stop()
	holderPod := first.Pods()[0]
	for _, p := range first.Pods() {
		if p.Name == "other" {
			p.Addrs = holderPod.Addrs
			port := p.Port()
			port.OFPort = p.OFPort
			if _, err := n.bridge.AddPort(t.Context(), port); err != nil {
				t.Fatal(err)
			}
		}
	}

	second, _ := n.start(t)
	second.events.want(t, "pod holder: "+eventreason.AddressInUseTwice, "pod other: "+eventreason.AddressInUseTwice)
	if err := second.reconcile(t.Context(), allValid); err != nil {
		t.Error(err)
	}
	second.events.want(t, "pod holder: "+eventreason.AddressInUseTwice, "pod other: "+eventreason.AddressInUseTwice) // once
	for _, req := range []struct {
		text string
		err  error
	}{
		{"has one of the addresses", second.Check(t.Context(), check(t, holder, holderResult))},
		{"in use twice", second.Check(t.Context(), check(t, other, otherResult))},
	} {
		if req.err == nil {
			t.Errorf("CHECK: got no error, want %q", req.text)
		}
	}
	// The address stays allocated until both pods are deleted.
	del(t, second, holder)
	if err := second.reconcile(t.Context(), allValid); err != nil {
		t.Error(err)
	}
	if lease, ok := second.ipam.Holder(holderPod.Addrs[0]); !ok || lease.ContainerID != other.ContainerID {
		t.Errorf("got lease %+v, want container %s", lease, other.ContainerID)
	}
	if err := second.fault(sandbox.Attachment{Sandbox: other.ContainerID, IfName: "eth0"}); err != nil {
		t.Errorf("fault of the only pod with the address: got %v, want none", err)
	}
	if len(n.flows()) == 0 {
		t.Error("got no flows of the only pod with the address")
	}
	del(t, second, other)
	n.wantClean(t)
}

// An attached pod has no lease: its address is not allocated to another pod.
func TestAdd_addressWithoutLease(t *testing.T) {
	n := newNode(t)
	n.options.Subnets = []netip.Prefix{netip.MustParsePrefix("10.128.2.0/29")} // five addresses
	a, _ := n.start(t)
	req := n.addPod("web", newNetns(t))
	checkReq := check(t, req, add(t, a, req))
	if err := a.ipam.Release(t.Context(), req.ContainerID, "eth0"); err != nil {
		t.Fatal(err)
	}
	for i := range 4 {
		other := n.addPod(fmt.Sprintf("other%d", i), newNetns(t))
		add(t, a, other)
		defer del(t, a, other)
	}
	last := n.addPod("last", newNetns(t))
	if _, err := a.Add(t.Context(), last); code(err) != types.ErrTryAgainLater {
		t.Errorf("ADD without a free address: got %v, want code %d", err, types.ErrTryAgainLater)
	}
	if err := a.Check(t.Context(), checkReq); err != nil {
		t.Error(err)
	}
	del(t, a, req)
	add(t, a, last)
	del(t, a, last)
}
