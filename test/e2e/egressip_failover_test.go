package e2e

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
	"github.com/ovsdn/ovsdn/test/lab"
)

// egressRange has the egress IPs that the controller assigns.
func egressRange() netip.Prefix { return netip.MustParsePrefix("172.31.0.192/28") }

// failoverLimit is the longest time from the death of a node to the first packet with its egress IP from another node, with the default settings.
const failoverLimit = 3 * time.Second

// failovers is how often a node dies in testEgressIPFailover; the last time its machine is started again.
const failovers = 3

// assigned returns the egress IPs of the range by node, as the HostSubnets have them.
func (w *egressWorld) assigned(ctx context.Context) (map[string][]netip.Addr, error) {
	all := map[string][]netip.Addr{}
	for _, node := range w.nodes {
		o, err := w.Network.NetworkV1().HostSubnets().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		for _, text := range o.EgressIPs {
			ip, err := netip.ParseAddr(string(text))
			if err != nil {
				return nil, err
			}
			if egressRange().Contains(ip) {
				all[node] = append(all[node], ip)
			}
		}
	}
	return all, nil
}

// testEgressIPAssignment: the controller assigns each IP to one node of three, with equal loads; those of a dead node to the others.
func testEgressIPAssignment(t *testing.T, w *egressWorld) {
	const count = 7
	var namespaces []string
	for range count {
		namespaces = append(namespaces, w.Namespace(t))
	}
	w.restoreEgressIPs(t, namespaces, w.nodes...)
	w.hosts(t, nil)
	for _, node := range w.nodes {
		w.setEgressCIDRs(t, node, egressRange())
	}
	ip := egressRange().Addr()
	for _, ns := range namespaces {
		w.useEgressIPs(t, ns, ip)
		ip = ip.Next()
	}
	balanced := func(nodes ...string) {
		t.Helper()
		fixture.Eventually(t, fixture.SyncTime, fmt.Sprintf("%d egress IPs on %v", count, nodes), func(ctx context.Context) error {
			all, err := w.assigned(ctx)
			if err != nil {
				return err
			}
			seen, least, most := map[netip.Addr]bool{}, count, 0
			for _, node := range nodes {
				least, most = min(least, len(all[node])), max(most, len(all[node]))
				for _, ip := range all[node] {
					seen[ip] = true
				}
			}
			if len(seen) != count || most-least > 1 {
				return fmt.Errorf("got %v", all)
			}
			return nil
		})
	}
	balanced(w.nodes...)
	w.probed(t, fixture.Node3)
	w.cut(t, fixture.Node3, true)
	balanced(fixture.Node1, fixture.Node2)
	w.cut(t, fixture.Node3, false)
	w.reachable(t, fixture.Node3, true)
	for _, ns := range namespaces {
		w.useEgressIPs(t, ns)
	}
}

// cut disconnects a node from the network of the nodes, or connects it again. It returns when that was done.
func (c *cluster) cut(t *testing.T, node string, disconnected bool) (at time.Time) {
	t.Helper()
	fabric := c.Machine(t, lab.ControlPlane).NetNS
	set := func() error {
		return fabric.Do(func() error {
			port, err := netlinksafe.LinkByName("v-" + node)
			if err != nil {
				return err
			}
			if disconnected {
				return netlink.LinkSetDown(port)
			}
			return netlink.LinkSetUp(port)
		})
	}
	at = time.Now()
	if err := set(); err != nil {
		t.Fatal(err)
	}
	if disconnected {
		t.Cleanup(func() {
			disconnected = false
			if err := set(); err != nil {
				t.Error(err)
			}
		})
	}
	return at
}

// reachable waits until the controller reports that it reaches the node, or that it does not.
func (c *cluster) reachable(t *testing.T, node string, want bool) {
	t.Helper()
	fixture.Eventually(t, fixture.NodeTime, fmt.Sprintf("%s is reachable: %v", node, want), func(ctx context.Context) error {
		o, err := c.Network.NetworkV1().HostSubnets().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if since, unreachable := o.Annotations[config.EgressUnreachableAnnotation]; unreachable == want {
			return fmt.Errorf("it is unreachable since %q", since)
		}
		return nil
	})
}

// probed waits until a node has answered a probe of the controller: one that never has may be behind a firewall.
func (c *cluster) probed(t *testing.T, node string) {
	t.Helper()
	const annotation = "ovsdn.io/egress-probed"
	fixture.Eventually(t, fixture.SyncTime, node+" has answered a probe", func(ctx context.Context) error {
		o, err := c.Network.NetworkV1().HostSubnets().Get(ctx, node, metav1.GetOptions{})
		if err == nil && o.Annotations[annotation] != "true" {
			err = fmt.Errorf("it has annotations %v", o.Annotations)
		}
		return err
	})
}

// testEgressIPFailover: an IP of a dead node moves to another one within failoverLimit. In this time no packet leaves any node with another source than the
// namespace's.
func testEgressIPFailover(t *testing.T, w *egressWorld) {
	w.uses(t, w.several)
	w.uses(t, w.unhosted)
	w.hosts(t, nil)
	for _, node := range []string{fixture.Node2, fixture.Node3} {
		w.setEgressCIDRs(t, node, egressRange())
	}
	ip := egressRange().Addr()
	w.uses(t, w.one, ip)
	for _, node := range []string{fixture.Node2, fixture.Node3} {
		w.probed(t, node)
	}
	u := newUplinks(t, w)
	stop := w.startOpening(t)
	for i := range failovers {
		dead, next := w.host(t, ip)
		w.agrees(t)
		d := w.sendDated(t, w.one.pods[0], ip)
		d.await(t, w.Addr(t, dead), time.Now())
		died := w.cut(t, dead, true)
		w.failsOver(t, d, died, dead, next)
		d.stop(t)
		if i == failovers-1 {
			// The machine's network namespace ends.
			t.Logf("%d connections, packets by node and source: %v", stop(), u.counts())
			u.stop()
			ctx, cancel := context.WithTimeout(t.Context(), fixture.NodeTime)
			defer cancel()
			if err := w.RebootNodes(ctx, t.Logf, dead); err != nil {
				t.Fatal(err)
			}
		} else {
			w.cut(t, dead, false)
		}
		w.reachable(t, dead, true)
	}
	w.host(t, ip)
	hasSource(t, "after the failovers", w.one.pods[0].NetNS, w.places[0].netns, netip.AddrPortFrom(w.places[0].addr, 0), ip)
}

// failsOver waits for the first datagram from another node, which must be sent within failoverLimit.
func (w *egressWorld) failsOver(t *testing.T, d *dated, died time.Time, dead, next string) {
	t.Helper()
	took := d.await(t, w.Addr(t, next), died).Sub(died)
	t.Logf("failover from %s to %s: %v", dead, next, took)
	if took > failoverLimit {
		t.Errorf("the first packet with an egress IP leaves %s %v after the death of %s, want at most %v", next, took, dead, failoverLimit)
	}
}

// host waits until one of the second and the third node hosts the IP, and returns it and the other one.
func (w *egressWorld) host(t *testing.T, ip netip.Addr) (host, other string) {
	t.Helper()
	fixture.Eventually(t, fixture.SyncTime, "a node hosts "+ip.String(), func(ctx context.Context) error {
		all, err := w.assigned(ctx)
		if err != nil {
			return err
		}
		host, other = fixture.Node2, fixture.Node3
		if !slices.Contains(all[host], ip) {
			host, other = other, host
		}
		if !slices.Contains(all[host], ip) || slices.Contains(all[other], ip) {
			return fmt.Errorf("got %v", all)
		}
		w.hosted = map[string][]netip.Addr{host: {ip}}
		return nil
	})
	return host, other
}

// dated is a stream of datagrams with the time at which they were sent.
type dated struct {
	sources []netip.Addr // one of which packets must have
	cancel  context.CancelFunc
	sending sync.WaitGroup
	capture *wire.Capture
}

// datedText begins the datagrams.
const datedText = "egress IP at "

// datedInterval is between two datagrams.
const datedInterval = 5 * time.Millisecond

// sendDated sends datagrams from a pod to the host outside, and records those that arrive.
func (w *egressWorld) sendDated(t *testing.T, p pod, sources ...netip.Addr) *dated {
	t.Helper()
	at := w.places[0]
	capture, err := at.netns.Capture(uplinkName, []byte(datedText))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := p.NetNS.DialContext(t.Context(), "udp4", at.conn.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	d := &dated{sources: sources, cancel: cancel, capture: capture}
	d.sending.Go(func() {
		defer conn.Close()
		tick := time.NewTicker(datedInterval)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			_, _ = fmt.Fprintf(conn, "%s%d;", datedText, time.Now().UnixNano()) // the host outside may be unreachable for a while
		}
	})
	return d
}

// await returns when the first datagram after a time was sent that the host outside receives from the node.
func (d *dated) await(t *testing.T, node netip.Addr, since time.Time) (sent time.Time) {
	t.Helper()
	fixture.Eventually(t, fixture.SyncTime, "datagrams from "+node.String(), func(context.Context) error {
		frames := d.capture.Frames([]byte(datedText))
		for _, f := range frames {
			flow, ok := wire.ParseFlow(f)
			if ok && flow.Dst.Addr() != lab.OutsideAddr() {
				continue // the answer
			}
			if ok && !slices.Contains(d.sources, flow.Src.Addr()) {
				fixture.Arrived(t, "got a datagram from %s, want a source of %v", flow.Src, d.sources)
			}
			if !ok || !slices.Equal(flow.From[2:], node.AsSlice()) { // the lab's MACs end in the address
				continue
			}
			_, text, _ := strings.Cut(string(f), datedText)
			text, _, _ = strings.Cut(text, ";")
			nanoseconds, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				return err
			}
			if sent = time.Unix(0, nanoseconds); sent.After(since) {
				return nil
			}
		}
		return fmt.Errorf("none of %d", len(frames))
	})
	return sent
}

func (d *dated) stop(t *testing.T) {
	t.Helper()
	d.cancel()
	d.sending.Wait()
	if err := d.capture.Close(); err != nil {
		t.Error(err)
	}
}

// testEgressIPManualFailover: the HostSubnet of a dead node with manual IPs reports it, and pods of a namespace with several IPs use another within
// failoverLimit. In this time no packet leaves any node with another source than the namespace's.
func testEgressIPManualFailover(t *testing.T, w *egressWorld) {
	w.assign(t)
	want := w.want(t)
	p := w.several.pods[0]
	ip, other := egressIP(1), egressIP(2)
	if w.selected(p, w.several.ips) != ip.String() {
		ip, other = other, ip
	}
	dead, next := w.hostOf(ip), w.hostOf(other)
	w.probed(t, dead)
	u := newUplinks(t, w)
	stop := w.startOpening(t)
	d := w.sendDated(t, p, ip, other)
	d.await(t, w.Addr(t, dead), time.Now())
	died := w.cut(t, dead, true)
	w.failsOver(t, d, died, dead, next)
	d.stop(t)
	w.reachable(t, dead, false)
	w.Warned(t, died, "HostSubnet", dead, dead)
	for r := range want {
		if r.pod == "on-"+dead && r.to != dead || r.to == dead && r.pod != "on-"+dead {
			want[r] = nothing
		}
	}
	for _, p := range w.several.pods {
		for _, to := range outsidePlaces() {
			if p.Node != dead {
				want[row{w.several.namespace, p.Name, to}] = other.String()
			}
		}
	}
	w.becomes(t, want)
	w.cut(t, dead, false)
	w.reachable(t, dead, true)
	w.agrees(t)
	t.Logf("sources while %s was dead: %v", dead, slices.Sorted(maps.Values(want)))
	t.Logf("%d connections, packets by node and source: %v", stop(), u.counts())
}

// hostOf returns the node that has the IP in its HostSubnet.
func (w *egressWorld) hostOf(ip netip.Addr) string {
	for node, ips := range w.hosted {
		if slices.Contains(ips, ip) {
			return node
		}
	}
	return ""
}
