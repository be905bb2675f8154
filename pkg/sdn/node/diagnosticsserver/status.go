package diagnosticsserver

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
)

const (
	maxRefusals = 20  // in a status
	maxError    = 500 // bytes of an error in a status

	maxPeerProblems = 20 // in a status

	maxPlacementError = 120 // bytes of the problem of an egress IP in a status
)

// serveStatus answers from memory.
func (h *Handler) serveStatus(w http.ResponseWriter, r *http.Request) {
	st := diagnostics.NodeStatusStatus{Datapath: h.options.Datapath, Started: h.started}
	st.AgentVersion, st.OVSVersion = h.options.Version(r)
	if err := h.options.Ready(); err != nil {
		st.NotReady = err.Error()
		if ovs.IsUnavailable(err) { // during the set-up
			st.SwitchError = st.NotReady
		}
	}
	st.Ready = st.NotReady == ""
	if n := h.network.Load(); n != nil {
		n.report(&st)
	}
	send(w, diagnostics.NodeStatus{TypeMeta: h.typeMeta("NodeStatus"), ObjectMeta: metav1.ObjectMeta{Name: h.options.NodeName}, Status: st})
}

func (n *Network) report(st *diagnostics.NodeStatusStatus) {
	if err := n.SwitchHealthy(); err != nil {
		st.SwitchError = err.Error()
	}
	st.Mode = n.Mode.String()
	st.HostIP = n.HostSubnet.HostIP.String()
	var subnets []string
	for _, p := range n.HostSubnet.Subnets {
		subnets = append(subnets, p.String())
	}
	st.Subnet = strings.Join(subnets, ",")

	pods := n.Pods()
	st.Pods = len(pods)
	addrs := n.Addrs()
	st.Addresses, st.Free = addrs.Total, addrs.Free

	st.Drops = n.Drops()
	st.PeerProblems, st.Peers, st.AnsweringPeers = n.Peers(maxPeerProblems)
	if n.EgressIPsNotPlaced != nil {
		st.EgressIPsNotPlaced = shortenNotPlaced(n.EgressIPsNotPlaced())
	}

	flows := n.Store.Statistics()
	st.Flows, st.Drift = flows.Flows, int64(flows.Drift.Changes())
	st.LastWrite, st.LastAudit = orNil(flows.LastWrite), orNil(flows.LastAudit)
	if flows.Refused == 0 {
		return
	}
	named := newNames(n, pods)
	refusals, more := n.Store.Refusals(maxRefusals)
	for _, r := range refusals {
		st.RefusedFlows = append(st.RefusedFlows, named.refusal(r))
	}
	if more > 0 {
		st.RefusedFlows = append(st.RefusedFlows, fmt.Sprintf("and those of %d other owners", more))
	}
}

// shortenNotPlaced limits the list: a lost uplink can affect hundreds of egress IPs, and the controller refuses larger answers.
func shortenNotPlaced(all []diagnostics.EgressIPNotPlaced) []diagnostics.EgressIPNotPlaced {
	all = slices.Clone(all[:min(len(all), diagnostics.MaxEgressIPsNotPlaced)])
	for i := range all {
		if p := &all[i].Problem; len(*p) > maxPlacementError {
			*p = strings.ToValidUTF8((*p)[:maxPlacementError-len("…")], "") + "…"
		}
	}
	return all
}

func (n *names) refusal(r flowstore.Refusal) string {
	text := strings.ReplaceAll(r.Err.Error(), "\n", "; ")
	if len(text) > maxError {
		text = strings.ToValidUTF8(text[:maxError], "") + "…"
	}
	return n.of(r.Owner) + ": " + text
}

func orNil(t time.Time) *metav1.Time {
	if t.IsZero() {
		return nil
	}
	return &metav1.Time{Time: t}
}
