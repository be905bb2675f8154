package policy

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/oracle"
	"github.com/ovsdn/ovsdn/test/testcluster"
)

// allows evaluates a connection by the engines of both ends, as an agent does for connections in conntrack.
func (n *nodes) allows(conn oracle.Connection) bool {
	ask := func(d Direction, at *corev1.Pod, peer oracle.Endpoint) bool {
		return at == nil || n.byName[at.Spec.NodeName].engine.Allows(d, PodKey{Namespace: at.Namespace, Name: at.Name},
			Packet{Peer: peer.Addr, Protocol: conn.Protocol, Port: uint16(conn.Port)}) //nolint:gosec // small
	}
	return exempt(conn.From, conn.To) || ask(Egress, conn.From.Pod, conn.To) && ask(Ingress, conn.To.Pod, conn.From)
}

func (n *nodes) compareVerdicts(w *testcluster.World, sample func() bool) error {
	ends := w.Endpoints()
	for _, from := range ends {
		for _, to := range ends {
			// Packets that a node forwards have its address: a tracked connection does not show which of the two opened it.
			if from.Pod == nil && to.Pod == nil || from.Through != "" || to.Through != "" || !sample() {
				continue
			}
			for _, protocol := range testcluster.Protocols() {
				for _, port := range testcluster.Ports(protocol) {
					conn := oracle.Connection{From: from, To: to, Protocol: protocol, Port: port}
					if got, want := n.allows(conn), w.Evaluate(conn); got != want.Allowed {
						return fmt.Errorf("%s to %s, %s %d: allowed %v, want %v: %s", end(from), end(to), protocol, port, got, want.Allowed, want.Why)
					}
				}
			}
		}
	}
	return nil
}

// The engine's verdict on a packet equals the oracle's, in random clusters, after each of fifty changes.
func TestVerdictsAgreeWithTheOracle(t *testing.T) {
	comparison((*nodes).compareVerdicts).inClusters(t, func(*testing.T, *nodes, *testcluster.World) {})
}

// The same for all of cyclonus' cases.
func TestVerdictsOnCases(t *testing.T) { comparison((*nodes).compareVerdicts).onCases(t) }
