package egresspolicy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/inputs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/tier"
)

// Connections that become forbidden are flushed, those of other pods, to other destinations and from outside are not.
func TestEvaluateConnections(t *testing.T) {
	tier.Parallel(t)
	endpoint := func(addr string) pipeline.OutsideEndpoints {
		return pipeline.OutsideEndpoints{Addrs: []netip.AddrPort{netip.MustParseAddrPort(addr)}}
	}
	c := newCluster(t)
	c.outside[netip.MustParseAddrPort("172.30.0.1:443")] = endpoint("203.0.113.9:443")
	c.outside[netip.MustParseAddrPort("172.30.0.2:443")] = endpoint("192.0.2.9:443")
	c.outside[netip.MustParseAddrPort("172.30.0.3:443")] = pipeline.OutsideEndpoints{Closed: true}
	c.outside[netip.MustParseAddrPort("172.30.0.4:443")] = endpoint("10.128.0.1:443") // tun0
	c.outside[netip.AddrPortFrom(netip.Addr{}, 30443)] = endpoint("203.0.113.9:443")
	c.policies.Add(egressPolicy("tenant/default", "Allow 203.0.113.0/24", "Allow 0.0.0.0/0"))
	a, _ := c.start(t, "tenant/5", "other/6", "global/7")
	a.st.Update(flowstore.Update{Publish: []flowstore.Published{{Input: inputs.VNID("global"), Value: config.GlobalVNID}}})
	a.want("priority=100,reg10=0x1,actions=pass", "priority=124,reg10=0x1,nw_dst=203.0.113.0/24,actions=pass")
	flushed := map[string]bool{}
	connect := func(src, dst string, protocol uint8, forbidden bool) {
		from, to := netip.MustParseAddr(src), netip.MustParseAddrPort(dst)
		port := uint16(30_000 + len(flushed))
		flushed[fmt.Sprint(port)] = forbidden
		zone := uint16(0x6005)
		if protocol == unix.IPPROTO_SCTP {
			zone = 0x6006 // flushed as a whole
		}
		c.bridge.Connect(ovs.Connections{Zone: zone, Protocol: protocol,
			Original: ovs.Tuple{Src: from, Dst: to.Addr(), SrcPort: port, DstPort: to.Port()}, Reply: ovs.Tuple{Src: to.Addr(), Dst: from, SrcPort: to.Port(), DstPort: port}})
	}
	const pod, other = "10.128.0.5", "10.128.0.6"
	connect(pod, "203.0.113.1:80", unix.IPPROTO_TCP, true)
	connect(pod, "192.0.2.1:80", unix.IPPROTO_TCP, false)
	connect(pod, "203.0.113.1:80", unix.IPPROTO_SCTP, true)
	connect(other, "203.0.113.1:80", unix.IPPROTO_TCP, false)
	connect("10.128.0.7", "203.0.113.1:80", unix.IPPROTO_TCP, false)
	connect("203.0.113.1", pod+":80", unix.IPPROTO_TCP, false) // a client outside
	connect(pod, "172.31.0.11:53", unix.IPPROTO_UDP, false)    // DNS on the node
	connect(pod, "172.31.0.11:80", unix.IPPROTO_TCP, true)     // the node
	connect(pod, "172.31.0.11:30443", unix.IPPROTO_TCP, true)
	connect(pod, "10.128.0.1:30443", unix.IPPROTO_TCP, true)
	connect(pod, "10.128.0.1:80", unix.IPPROTO_TCP, false)
	connect(pod, "10.129.0.9:80", unix.IPPROTO_TCP, false)
	connect(pod, "172.30.0.1:443", unix.IPPROTO_TCP, true)
	connect(pod, "172.30.0.2:443", unix.IPPROTO_TCP, false)
	connect(pod, "172.30.0.3:443", unix.IPPROTO_TCP, true)
	connect(pod, "172.30.0.4:443", unix.IPPROTO_TCP, false)
	connect(pod, "172.30.0.9:443", unix.IPPROTO_TCP, false)
	c.policies.Add(egressPolicy("global/default", "Deny 0.0.0.0/0"))
	c.policies.Modify(egressPolicy("tenant/default", "Deny 203.0.113.0/24", "Deny 172.31.0.0/24", "Allow 0.0.0.0/0"))
	a.wantFlushed(flushed)
	// A policy of a namespace without one flushes, too, and the first pod of a namespace does not.
	before, _ := a.st.Flushed()
	c.policies.Add(egressPolicy("third/default", "Deny 0.0.0.0/0"))
	if err := a.attach("third/8")(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.policies.Add(egressPolicy("other/default", "Deny 203.0.113.0/24"))
	flushed["30003"] = true // of namespace other
	a.wantFlushed(flushed)
	if after, _ := a.st.Flushed(); after > before+1 {
		t.Errorf("got %d evaluations, want one", after-before)
	}
}

// wantFlushed waits until exactly the connections with these source ports are flushed, and until the evaluations that did so have ended.
func (a *agent) wantFlushed(flushed map[string]bool) {
	a.t.Helper()
	await.OK(a.t, testTimeout, func(context.Context) error {
		if evaluations, _ := a.st.Flushed(); evaluations == 0 {
			return errors.New("connections are not evaluated yet")
		}
		remaining := map[string]bool{}
		for _, x := range a.bridge.Tracked() {
			remaining[fmt.Sprint(x.Original.SrcPort)] = true
		}
		total := 0
		for port, want := range flushed {
			if remaining[port] == want {
				return fmt.Errorf("connection with source port %s flushed: got %t, want %t", port, !remaining[port], want)
			}
			if want {
				total++
			}
		}
		if _, connections := a.st.Flushed(); connections < total {
			return fmt.Errorf("got %d flushed connections in ended evaluations, want %d", connections, total)
		}
		return nil
	})
}
