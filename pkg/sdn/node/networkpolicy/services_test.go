package networkpolicy

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/oracle"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/testcluster"
)

// compareServices installs services, and compares the connections of all pods to them with the oracle. It returns the number of traced connections.
func (n *testNodes) compareServices(t *testing.T, when string, w *testcluster.World, services []testcluster.Service) (traced int) {
	t.Helper()
	for _, s := range n.all {
		s.setServices(t, services, n.vnids)
		var conns []oracle.Connection
		var want []oracle.Verdict
		for _, from := range w.Endpoints() {
			if from.Pod == nil || !s.isLocal(from.Pod) {
				continue
			}
			for _, svc := range services {
				svc.Endpoints = slices.DeleteFunc(slices.Clone(svc.Endpoints), func(e testcluster.Target) bool { return !s.node.IsOutside(e.Addr) })
				conns = append(conns, oracle.Connection{From: from, To: oracle.Endpoint{Addr: svc.Addr}, Protocol: svc.Protocol, Port: svc.Port})
				want = append(want, w.EvaluateService(from.Pod, svc))
			}
		}
		got, err := s.allows(conns, n.vnids)
		if err != nil {
			t.Fatal(err)
		}
		for i, conn := range conns {
			if got[i] != want[i].Allowed {
				t.Fatalf("%s: %s to service %s, %s: got allowed %v, want %v: %s", when, end(conn.From), conn.To.Addr, conn.Protocol, got[i], want[i].Allowed, want[i].Why)
			}
		}
		traced += len(conns)
	}
	return traced
}

// setServices installs the flows of the services.
func (s *testNode) setServices(t *testing.T, services []testcluster.Service, vnids map[string]uint32) {
	t.Helper()
	var changes []flowstore.Change
	for _, svc := range services {
		port := pipeline.ServicePort{Protocol: protocol(svc.Protocol), Port: uint16(svc.Port)} //nolint:gosec // small
		for _, e := range svc.Endpoints {
			if s.node.IsOutside(e.Addr) {
				port.Outside.Addrs = append(port.Outside.Addrs, netip.AddrPortFrom(e.Addr, uint16(e.Port))) //nolint:gosec // small
			}
		}
		owner := pipeline.Owner{Kind: pipeline.KindService, Key: svc.Addr.String()}
		s.written[owner] = true
		state := s.node.Service(pipeline.Service{ClusterIPs: []netip.Addr{svc.Addr}, Ports: []pipeline.ServicePort{port}, VNID: config.VNID(vnids[svc.Namespace])})
		changes = append(changes, flowstore.Change{Owner: owner, State: state})
	}
	for i, commit := range s.store.SetAll(changes...) {
		if err := commit.Wait(t.Context()); err != nil {
			t.Fatal(fmt.Errorf("service %s: %w", services[i].Addr, err))
		}
	}
}
