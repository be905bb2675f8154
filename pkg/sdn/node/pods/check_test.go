package pods

import (
	"encoding/json"
	"errors"
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
)

func TestCheckFindsDamage(t *testing.T) {
	n := newNode(t)
	a, _ := n.start(t)
	for name, damage := range map[string]struct {
		text string
		do   func(pod ns.NetNS, p Pod) error
	}{
		"route": {"lacks the route to 172.30.0.0/16", inPod(func(l netlink.Link) error {
			service := ipNet(netip.MustParsePrefix("172.30.0.0/16"))
			return netlink.RouteDel(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: &service})
		})},
		"address": {"lacks address 10.128.2.", inPod(func(l netlink.Link) error {
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
		"lease gone": {"is not marked as taken", func(_ ns.NetNS, p Pod) error {
			return os.Remove(n.ipamDir + "/ovsdn/" + p.Addrs[0].String())
		}},
		"lease taken over": {"is marked as taken by eth0 of container \"thief\"", func(_ ns.NetNS, p Pod) error {
			return os.WriteFile(n.ipamDir+"/ovsdn/"+p.Addrs[0].String(), []byte("thief\r\neth0"), 0o600)
		}},
		"port": {"the bridge has no port", func(_ ns.NetNS, p Pod) error {
			return n.bridge.DeletePort(t.Context(), p.HostVeth())
		}},
		"external_ids": {`external_ids:pod-uid of port`, func(_ ns.NetNS, p Pod) error {
			p.UID = "another"
			port := p.port()
			port.OFPort = p.OFPort
			_, err := n.bridge.AddPort(t.Context(), port)
			return err
		}},
		"address in use twice": {"has an address of", func(_ ns.NetNS, p Pod) error {
			p.Sandbox = "other"
			_, err := n.bridge.AddPort(t.Context(), p.port())
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			pod := newNetns(t)
			req := n.addPod("web", pod)
			checkReq := check(t, req, add(t, a, req))
			if err := a.Check(t.Context(), checkReq); err != nil {
				t.Fatalf("before the damage: %v", err)
			}
			if err := damage.do(pod, a.Pods()[0]); err != nil {
				t.Fatal(err)
			}
			err := a.Check(t.Context(), checkReq)
			if code(err) != ErrNotAsMade || !strings.Contains(err.Error(), damage.text) {
				t.Errorf("code %d, want %q: %v", code(err), damage.text, err)
			}
			del(t, a, req)
			if err := errors.Join(n.bridge.DeletePort(t.Context(), Attachment{"other", "eth0"}.HostVeth()),
				os.RemoveAll(n.ipamDir+"/ovsdn/10.128.2.2")); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func inPod(change func(netlink.Link) error) func(ns.NetNS, Pod) error {
	return func(pod ns.NetNS, _ Pod) error {
		return pod.Do(func(ns.NetNS) error {
			link, err := netlinksafe.LinkByName("eth0")
			if err != nil {
				return err
			}
			return change(link)
		})
	}
}

// What the runtime says that ADD answered is compared with what ADD did.
func TestPrevResultThatLies(t *testing.T) {
	n := newNode(t)
	a, _ := n.start(t)
	req := n.addPod("web", newNetns(t))
	made := add(t, a, req)
	for name, tt := range map[string]struct {
		lie  func(r *current.Result)
		code uint
		text string
	}{
		"the truth": {func(*current.Result) {}, 0, ""},
		"more, from plugins behind": {func(r *current.Result) {
			r.Interfaces = append(r.Interfaces, &current.Interface{Name: "ifb0"})
			r.DNS.Nameservers = []string{"10.0.0.10"}
		}, 0, ""},
		"address":    {func(r *current.Result) { r.IPs[0].Address.IP = net.IPv4(10, 128, 2, 99) }, types.ErrInvalidNetworkConfig, "address 10.128.2.2/23 is not in it"},
		"no address": {func(r *current.Result) { r.IPs = nil }, types.ErrInvalidNetworkConfig, "address 10.128.2.2/23 is not in it"},
		"MAC":        {func(r *current.Result) { r.Interfaces[1].Mac = "0a:58:00:00:00:01" }, types.ErrInvalidNetworkConfig, "interface eth0"},
		"sandbox":    {func(r *current.Result) { r.Interfaces[1].Sandbox = "/run/netns/other" }, types.ErrInvalidNetworkConfig, "interface eth0"},
		"host's end": {func(r *current.Result) { r.Interfaces[0].Name = "lo" }, types.ErrInvalidNetworkConfig, "interface veth"},
	} {
		t.Run(name, func(t *testing.T) {
			told := new(current.Result)
			text, err := json.Marshal(made)
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(text, told); err != nil {
				t.Fatal(err)
			}
			tt.lie(told)
			err = a.Check(t.Context(), check(t, req, told))
			if code(err) != tt.code || err != nil && !strings.Contains(err.Error(), tt.text) {
				t.Errorf("code %d, want %d with %q: %v", code(err), tt.code, tt.text, err)
			}
		})
	}
	if told := a.events.count("pod web: " + ReasonCheckFailed); told != 5 {
		t.Errorf("%d Events of 5 lies", told)
	}
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
			t.Errorf("%s: code %d, want %d: %v", prev, code(err), want, err)
		}
	}
	// DEL believes nothing of it, and ADD does not follow another plugin.
	lying := check(t, req, &current.Result{CNIVersion: "1.1.0", Interfaces: []*current.Interface{{Name: "lo"}}})
	other := n.addPod("other", newNetns(t))
	other.Config = lying.Config
	if _, err := a.Add(t.Context(), other); code(err) != types.ErrUnsupportedField || !strings.Contains(err.Error(), "prevResult") {
		t.Errorf("ADD: %v", err)
	}
	a.events.want(t, "pod other: "+ReasonAttachFailed)
	del(t, a, lying)
	n.wantClean(t)
}

// One address on two ports is told to both pods; the one with the address's file keeps its flows.
func TestAddressInUseTwice(t *testing.T) {
	n := newNode(t)
	first, stop := n.start(t)
	honest, thief := n.addPod("honest", newNetns(t)), n.addPod("thief", newNetns(t))
	honestResult, thiefResult := add(t, first, honest), add(t, first, thief)
	stop()
	victim := first.Pods()[0]
	for _, p := range first.Pods() {
		if p.Name == "thief" {
			p.Addrs = victim.Addrs
			port := p.port()
			port.OFPort = p.OFPort
			if _, err := n.bridge.AddPort(t.Context(), port); err != nil {
				t.Fatal(err)
			}
		}
	}

	second, _ := n.start(t)
	second.events.want(t, "pod honest: "+ReasonAddressInUse, "pod thief: "+ReasonAddressInUse)
	if err := second.sweep(t.Context(), allValid); err != nil {
		t.Error(err)
	}
	second.events.want(t, "pod honest: "+ReasonAddressInUse, "pod thief: "+ReasonAddressInUse) // once
	for _, req := range []struct {
		text string
		err  error
	}{
		{"has an address of", second.Check(t.Context(), check(t, honest, honestResult))},
		{"in use twice", second.Check(t.Context(), check(t, thief, thiefResult))},
	} {
		if req.err == nil {
			t.Errorf("CHECK: no error, want %q", req.text)
		}
	}
	// The address stays taken as long as either has it.
	del(t, second, honest)
	if err := second.sweep(t.Context(), allValid); err != nil {
		t.Error(err)
	}
	if lease, ok := second.ipam.Holder(victim.Addrs[0]); !ok || lease.ContainerID != thief.ContainerID {
		t.Errorf("the address is %+v's", lease)
	}
	if err := second.fault(Attachment{thief.ContainerID, "eth0"}); err != nil {
		t.Errorf("the thief is alone now: %v", err)
	}
	if len(n.flows()) == 0 {
		t.Error("it has no flows")
	}
	del(t, second, thief)
	n.wantClean(t)
}

// The files say that an address is free, and ours is the only memory of who has it.
func TestAddressThatOnlyMemoryKnows(t *testing.T) {
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
	unlucky := n.addPod("unlucky", newNetns(t))
	if _, err := a.Add(t.Context(), unlucky); code(err) != types.ErrTryAgainLater {
		t.Errorf("got %v", err)
	}
	if err := a.Check(t.Context(), checkReq); err != nil {
		t.Error(err)
	}
	del(t, a, req)
	add(t, a, unlucky)
	del(t, a, unlucky)
}
