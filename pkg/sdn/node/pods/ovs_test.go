package pods

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vishvananda/netlink"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/ovstest"
	"github.com/ovsdn/ovsdn/test/tier"
)

// newOVSNode makes a node with a real switch.
func newOVSNode(t testing.TB) (*node, *ovstest.Switch) {
	t.Helper()
	s := ovstest.Start(t)
	backend := native.New(ovstest.Bridge, s.RunDir)
	t.Cleanup(backend.Close)
	n := &node{
		host:    s.NS,
		bridge:  backend,
		flows:   func() []string { return s.Dump(t) },
		ipamDir: t.TempDir(),
		options: options(),
		mode:    config.ModeSubnet,
		api:     api{},
	}
	n.pods = n.api
	n.ensureFixture(t)
	return n, s
}

// Two pods connect by TCP through compiled flows on a real switch, also after the agent was restarted. DEL removes everything.
func TestPodsConnect(t *testing.T) {
	tier.Parallel(t)
	n, _ := newOVSNode(t)
	first, stop := n.start(t)
	static, err := n.compiler().Static()
	if err != nil {
		t.Fatal(err)
	}
	if err := first.store.Set(pipeline.Owner{Kind: pipeline.KindNode, Key: "node1"}, static).Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := n.residue(t)

	a, b := newNetns(t), newNetns(t)
	reqA, reqB := n.addPod("a", a), n.addPod("b", b)
	add(t, first, reqA)
	add(t, first, reqB)
	connect(t, a, b, "10.128.2.3")
	connect(t, b, a, "10.128.2.2")
	stop()

	second, _ := n.boot(t)
	second.store.Set(pipeline.Owner{Kind: pipeline.KindNode, Key: "node1"}, static)
	if err := second.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	connect(t, a, b, "10.128.2.3")
	c := newNetns(t)
	reqC := n.addPod("c", c)
	add(t, second, reqC)
	connect(t, c, a, "10.128.2.2")
	for _, r := range []string{reqA.ContainerID, reqB.ContainerID, reqC.ContainerID} {
		req := *reqA
		req.ContainerID = r
		del(t, second, &req)
	}
	if diff := cmp.Diff(before, n.residue(t), cmpopts.SortSlices(strings.Compare)); diff != "" {
		t.Errorf("left after DEL (-before +after):\n%s", diff)
	}
}

// connect sends more than a segment by TCP and waits for the same bytes: this needs a correct MTU, checksums and both directions.
func connect(t *testing.T, from, to ns.NetNS, addr string) {
	t.Helper()
	const size = 64 << 10
	var l net.Listener
	if err := to.Do(func(ns.NetNS) (err error) {
		l, err = net.Listen("tcp", addr+":0")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	received := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err != nil {
			received <- err
			return
		}
		defer conn.Close()
		_, err = io.CopyN(conn, conn, size)
		received <- err
	}()
	if err := from.Do(func(ns.NetNS) error {
		conn, err := net.DialTimeout("tcp", l.Addr().String(), patience)
		if err != nil {
			return err
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		sent := make(chan error, 1)
		go func() {
			_, err := conn.Write(make([]byte, size))
			sent <- err
		}()
		_, err = io.CopyN(io.Discard, conn, size)
		return errors.Join(err, <-sent)
	}); err != nil {
		l.Close()
		t.Errorf("connect to %s: %v", addr, err)
	}
	if err := <-received; err != nil {
		t.Errorf("listen on %s: %v", addr, err)
	}
}

// CHECK reads the flows from the switch.
func TestCheck_missingFlows(t *testing.T) {
	tier.Parallel(t)
	n, s := newOVSNode(t)
	a, _ := n.start(t)
	req := n.addPod("web", newNetns(t))
	checkReq := check(t, req, add(t, a, req))
	if err := a.Check(t.Context(), checkReq); err != nil {
		t.Fatal(err)
	}
	s.OFCtl(t, "del-flows", ovstest.Bridge, "table=70")
	if err := a.Check(t.Context(), checkReq); code(err) != ErrAttachmentChanged || !strings.Contains(err.Error(), "flow is missing on the switch: table=70") {
		t.Errorf("CHECK: got %v, want the missing flow", err)
	}
	s.OFCtl(t, "mod-flows", ovstest.Bridge, "table=40,actions=drop")
	if err := a.Check(t.Context(), checkReq); err == nil || !strings.Contains(err.Error(), "flow is missing on the switch: table=40") {
		t.Errorf("CHECK: got %v, want the missing flow", err)
	}
	del(t, a, req)
}

func TestStatus_vswitchdHangs(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: waits for timeouts of Open vSwitch")
	}
	n, s := newOVSNode(t)
	a, _ := n.start(t)
	resume := s.PauseVSwitchd(t)
	defer resume()
	for range maxFailedProbes + 1 {
		a.probe(t.Context())
	}
	if err := a.Status(t.Context()); code(err) != types.ErrLimitedConnectivity || strings.Count(err.Error(), "deadline exceeded") != 1 {
		t.Errorf("STATUS while vswitchd hangs: got %v, want code %d", err, types.ErrLimitedConnectivity)
	}
	resume()
	await.OK(t, 90*time.Second, func(ctx context.Context) error {
		a.probe(ctx)
		return a.Status(ctx)
	})
}

const patience = 90 * time.Second

func TestAdd_failureIsCleanedUpOnOVS(t *testing.T) {
	tier.Parallel(t)
	n, _ := newOVSNode(t)
	a, _ := n.start(t)
	req := n.addPod("web", newNetns(t))
	for _, point := range addPoints() {
		if point == "after allocate" {
			continue // see TestAdd_failureIsCleanedUp
		}
		a.faults.at(point, false)
		if _, err := a.Add(t.Context(), req); err == nil {
			t.Errorf("ADD with a fault %s: got no error", point)
		}
		n.wantClean(t)
	}
	add(t, a, req)
	del(t, a, req)
	n.wantClean(t)
}

// downSwitch sets each added device down, as vswitchd sometimes does with one that replaces another of its name.
type downSwitch struct {
	Switch
	host ns.NetNS
}

func (s downSwitch) AddPort(ctx context.Context, p ovs.Port) (ovs.Port, error) {
	got, err := s.Switch.AddPort(ctx, p)
	if err != nil {
		return got, err
	}
	return got, s.host.Do(func(ns.NetNS) error {
		link, err := netlinksafe.LinkByName(p.Name)
		if err != nil {
			return err
		}
		return netlink.LinkSetDown(link)
	})
}

func TestAdd_setsHostVethUp(t *testing.T) {
	tier.Parallel(t)
	n, _ := newOVSNode(t)
	a, _ := n.start(t)
	a.bridge = downSwitch{a.bridge, n.host}
	req := n.addPod("web", newNetns(t))
	add(t, a, req)
	if err := n.host.Do(func(ns.NetNS) error {
		link, err := netlinksafe.LinkByName(sandbox.Attachment{Sandbox: req.ContainerID, IfName: req.IfName}.HostVeth())
		if err != nil {
			return err
		}
		if link.Attrs().Flags&net.FlagUp == 0 {
			t.Error("got the host's end of the veth pair down, want up")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	del(t, a, req)
}

func TestAddDel_parallelOnOVS(t *testing.T) {
	n, _ := newOVSNode(t)
	addDelParallel(t, n, 16)
}

func BenchmarkAddDel(b *testing.B) {
	n, _ := newOVSNode(b)
	a, _ := n.start(b)
	pod := newNetns(b)
	req := n.addPod("web", pod)
	for b.Loop() {
		add(b, a, req)
		del(b, a, req)
	}
}

// Repair adds a deleted port, and corrects the flows of a port with another number. It does not add the port of a deleted pod.
func TestRepair(t *testing.T) {
	tier.Parallel(t)
	n, s := newOVSNode(t)
	m, _ := n.start(t)
	static, err := n.compiler().Static()
	if err != nil {
		t.Fatal(err)
	}
	if err := m.store.Set(pipeline.Owner{Kind: pipeline.KindNode, Key: "node1"}, static).Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	a, b := newNetns(t), newNetns(t)
	req := n.addPod("a", a)
	add(t, m, req)
	add(t, m, n.addPod("b", b))
	connect(t, a, b, "10.128.2.3")
	port := sandbox.Attachment{Sandbox: req.ContainerID, IfName: req.IfName}.HostVeth()

	s.VSCtl(t, "del-port", port)
	awaitOFPort(t, n.bridge, port, 0)
	if err := m.Repair(t.Context(), port); err != nil {
		t.Fatal(err)
	}
	connect(t, a, b, "10.128.2.3")
	for range 2 {
		m.reportRepaired(t.Context())
		m.events.want(t, "node: "+eventreason.PodPortsRebuilt)
	}

	const number = 4242
	s.VSCtl(t, "set", "interface", port, fmt.Sprintf("ofport_request=%d", number))
	awaitOFPort(t, n.bridge, port, number)
	if err := m.Repair(t.Context(), port); err != nil {
		t.Fatal(err)
	}
	connect(t, a, b, "10.128.2.3")

	before := s.Dump(t)
	for _, name := range []string{port, "vxlan0", "nosuch"} {
		if err := m.Repair(t.Context(), name); err != nil {
			t.Errorf("Repair of %s: %v", name, err)
		}
	}
	if after := s.Dump(t); !slices.Equal(before, after) {
		t.Errorf("Repair of an unchanged port: got flows %v, want %v", after, before)
	}
	del(t, m, req)
	if err := m.Repair(t.Context(), port); err != nil {
		t.Fatal(err)
	}
	if ports := s.VSCtl(t, "list-ports", ovstest.Bridge); strings.Contains(ports, port) {
		t.Error("Repair added the port of a deleted pod")
	}
}

// awaitOFPort waits until the agent's copy of OVSDB has the port number, 0 for a deleted port.
func awaitOFPort(t *testing.T, bridge Switch, port string, number int) {
	t.Helper()
	await.OK(t, patience, func(ctx context.Context) error {
		ports, err := bridge.ListPorts(ctx)
		if err != nil {
			return err
		}
		var got int
		for _, p := range ports {
			if p.Name == port {
				got = p.OFPort
			}
		}
		if got != number {
			return fmt.Errorf("port %s has OpenFlow port number %d, want %d", port, got, number)
		}
		return nil
	})
}
