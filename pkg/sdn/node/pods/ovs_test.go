package pods

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

// newOVSNode makes a node with a real switch.
func newOVSNode(t testing.TB) (*node, *ovstest.Switch) {
	t.Helper()
	s := ovstest.Start(t)
	native := ovs.NewNative(ovstest.Bridge, s.RunDir)
	t.Cleanup(native.Close)
	n := &node{
		host:    s.NS,
		bridge:  native,
		flows:   func() []string { return s.Dump(t) },
		ipamDir: t.TempDir(),
		options: options(),
		api:     api{},
	}
	n.ensureFixture(t)
	return n, s
}

// Two pods talk through compiled flows on a real switch, also after the agent was restarted, and leave nothing.
func TestPodsTalk(t *testing.T) {
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
	talk(t, a, b, "10.128.2.3")
	talk(t, b, a, "10.128.2.2")
	stop()

	second, _ := n.boot(t)
	second.store.Set(pipeline.Owner{Kind: pipeline.KindNode, Key: "node1"}, static)
	if err := second.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	talk(t, a, b, "10.128.2.3")
	c := newNetns(t)
	reqC := n.addPod("c", c)
	add(t, second, reqC)
	talk(t, c, a, "10.128.2.2")
	for _, r := range []string{reqA.ContainerID, reqB.ContainerID, reqC.ContainerID} {
		req := *reqA
		req.ContainerID = r
		del(t, second, &req)
	}
	if diff := cmp.Diff(before, n.residue(t), cmpopts.SortSlices(strings.Compare)); diff != "" {
		t.Errorf("left after DEL (-before +after):\n%s", diff)
	}
}

// talk sends more than a segment by TCP and waits for the answer: MTU, checksums and both directions are right.
func talk(t *testing.T, from, to ns.NetNS, addr string) {
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
		t.Errorf("to %s: %v", addr, err)
	}
	if err := <-received; err != nil {
		t.Errorf("at %s: %v", addr, err)
	}
}

// CHECK looks at the switch itself.
func TestCheckFindsMissingFlows(t *testing.T) {
	n, s := newOVSNode(t)
	a, _ := n.start(t)
	req := n.addPod("web", newNetns(t))
	checkReq := check(t, req, add(t, a, req))
	if err := a.Check(t.Context(), checkReq); err != nil {
		t.Fatal(err)
	}
	s.OFCtl(t, "del-flows", ovstest.Bridge, "table=70")
	if err := a.Check(t.Context(), checkReq); code(err) != ErrNotAsMade || !strings.Contains(err.Error(), "lacks the flow table=70") {
		t.Errorf("got %v", err)
	}
	s.OFCtl(t, "mod-flows", ovstest.Bridge, "table=40,actions=drop")
	if err := a.Check(t.Context(), checkReq); err == nil || !strings.Contains(err.Error(), "lacks the flow table=40") {
		t.Errorf("got %v", err)
	}
	resume := s.PauseVSwitchd(t)
	defer resume()
	for range maxMisses + 1 {
		a.probe(t.Context())
	}
	if err := a.Status(t.Context()); code(err) != types.ErrLimitedConnectivity || strings.Count(err.Error(), "deadline exceeded") != 1 {
		t.Errorf("STATUS while vswitchd hangs: %v", err)
	}
	resume()
	await.OK(t, time.Minute, func(ctx context.Context) error {
		a.probe(ctx)
		return a.Status(ctx)
	})
	del(t, a, req)
}

const patience = 20 * time.Second

func TestFailedAddLeavesNothingOnOVS(t *testing.T) {
	n, _ := newOVSNode(t)
	a, _ := n.start(t)
	req := n.addPod("web", newNetns(t))
	for _, point := range addPoints() {
		if point == "after allocate" {
			continue // see TestFailedAddLeavesNothing
		}
		a.faults.at(point, false)
		if _, err := a.Add(t.Context(), req); err == nil {
			t.Errorf("%s: no error", point)
		}
		n.wantClean(t)
	}
	add(t, a, req)
	del(t, a, req)
	n.wantClean(t)
}

func TestParallelOnOVS(t *testing.T) {
	n, _ := newOVSNode(t)
	parallel(t, n, 16)
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

// A port that somebody deletes, or gives another number, is repaired as soon as somebody says so; a dead pod's is not.
func TestRepair(t *testing.T) {
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
	talk(t, a, b, "10.128.2.3")
	port := Attachment{req.ContainerID, req.IfName}.HostVeth()

	s.VSCtl(t, "del-port", port)
	awaitNumber(t, n.bridge, port, 0)
	if err := m.Repair(t.Context(), port); err != nil {
		t.Fatal(err)
	}
	talk(t, a, b, "10.128.2.3")
	for range 2 {
		m.reportRepaired(t.Context())
		m.events.want(t, "node: "+ReasonPortsRebuilt)
	}

	const number = 4242
	s.VSCtl(t, "set", "interface", port, fmt.Sprintf("ofport_request=%d", number))
	awaitNumber(t, n.bridge, port, number)
	if err := m.Repair(t.Context(), port); err != nil {
		t.Fatal(err)
	}
	talk(t, a, b, "10.128.2.3")

	before := s.Dump(t)
	for _, name := range []string{port, "vxlan0", "nosuch"} {
		if err := m.Repair(t.Context(), name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if after := s.Dump(t); !slices.Equal(before, after) {
		t.Errorf("nothing was to repair, but flows changed from %v to %v", before, after)
	}
	del(t, m, req)
	if err := m.Repair(t.Context(), port); err != nil {
		t.Fatal(err)
	}
	if ports := s.VSCtl(t, "list-ports", ovstest.Bridge); strings.Contains(ports, port) {
		t.Error("the port of a pod that is gone came back")
	}
}

// awaitNumber waits until the agent sees that a port has the number, 0 if the port is gone: then it is told.
func awaitNumber(t *testing.T, bridge Switch, port string, number int) {
	t.Helper()
	await.OK(t, patience, func(ctx context.Context) error {
		ports, err := bridge.ListPorts(ctx)
		if err != nil {
			return err
		}
		var is int
		for _, p := range ports {
			if p.Name == port {
				is = p.OFPort
			}
		}
		if is != number {
			return fmt.Errorf("port %s has number %d, want %d", port, is, number)
		}
		return nil
	})
}

// A pod's number follows from its address, and comes free with it: where there is one address, each pod has the number of the one before.
func TestNumberIsReusedAtOnce(t *testing.T) {
	n, _ := newOVSNode(t)
	n.options.Subnets = []netip.Prefix{netip.MustParsePrefix("10.128.2.0/30")}
	a, _ := n.start(t)
	for i := range 20 {
		req := n.addPod(fmt.Sprintf("pod%d", i), newNetns(t))
		checkReq := check(t, req, add(t, a, req))
		if number := a.Pods()[0].OFPort; number != firstNumber+2 {
			t.Errorf("pod %d has OpenFlow port number %d", i, number)
		}
		if err := a.Check(t.Context(), checkReq); err != nil {
			t.Error(err)
		}
		del(t, a, req)
	}
	n.wantClean(t)
}

// unseen is a port that comes after the agent has looked for a free number.
type unseen struct {
	Switch
	name string
}

func (u unseen) ListPorts(ctx context.Context) ([]ovs.Port, error) {
	ports, err := u.Switch.ListPorts(ctx)
	return slices.DeleteFunc(ports, func(p ovs.Port) bool { return p.Name == u.name }), err
}

// A port of somebody else has the pod's number: the pod gets another, and the other port no flow.
func TestNumberIsTaken(t *testing.T) {
	for _, late := range []bool{false, true} {
		t.Run(fmt.Sprintf("seen too late %t", late), func(t *testing.T) {
			n, _ := newOVSNode(t)
			if _, err := n.bridge.AddPort(t.Context(), ovs.Port{Name: "foreign", Type: "internal", OFPort: firstNumber + 2}); err != nil {
				t.Fatal(err)
			}
			a, _ := n.start(t)
			bridge := a.bridge
			if late {
				a.bridge = unseen{bridge, "foreign"}
			}
			req := n.addPod("web", newNetns(t))
			checkReq := check(t, req, add(t, a, req))
			a.bridge = bridge
			number := a.Pods()[0].OFPort
			if number <= 0 || number >= firstNumber {
				t.Errorf("the pod has OpenFlow port number %d: Open vSwitch gave one that another pod may ask for", number)
			}
			if err := a.Check(t.Context(), checkReq); err != nil {
				t.Error(err)
			}
			for _, flow := range n.flows() {
				if strings.Contains(flow, fmt.Sprint(firstNumber+2)) || strings.Contains(flow, fmt.Sprintf("%#x", firstNumber+2)) {
					t.Errorf("a flow for the port of somebody else: %s", flow)
				}
			}
			del(t, a, req)
			n.wantClean(t)
		})
	}
}
