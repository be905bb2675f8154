package diagnosticsapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
)

const (
	maxGets       = 24 // that are answered at the same time; with lists and dumps, far fewer than the connections of one API server
	maxLists      = 4
	maxParallel   = 64 // requests to agents for one list
	statusTimeout = 5 * time.Second
	// listTimeout is shorter than that of the API server, 60 s. kubectl lists 500 nodes at once: if none of them answers, that takes 40 s.
	listTimeout = 50 * time.Second

	maxRefusedFlows = 20
	maxPeerProblems = 20
	maxEgressIPs    = config.MaxNodeEgressIPs
	maxDrops        = 64
	lastYear        = 2200 // of times that an agent may report: clients fail to parse five digits
)

// errNotAsked is the error of agents that were not asked in listTimeout.
var errNotAsked = fmt.Errorf("not asked: too many agents did not answer in %v; request the node by its name, or list with a limit", listTimeout)

// getStatus answers with the status of one node.
func (s *Server) getStatus(w http.ResponseWriter, r *http.Request, q request, form representation) error {
	node, err := s.nodeNamed(q.resource, q.name)
	if err != nil {
		return err
	}
	release, err := acquire(s.gets, "requests for a status")
	if err != nil {
		return err
	}
	defer release()
	items := []diagnostics.NodeStatus{s.status(r.Context(), node)}
	if form == table() {
		writeJSON(w, form, http.StatusOK, statusTable(items, metav1.ListMeta{}, includeObject(q.query)))
		return nil
	}
	writeJSON(w, form, http.StatusOK, items[0])
	return nil
}

// listStatuses answers with the status of the selected nodes. It asks their agents in parallel.
func (s *Server) listStatuses(w http.ResponseWriter, r *http.Request, q request, form representation) error {
	release, err := acquire(s.lists, "lists")
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := context.WithTimeout(r.Context(), listTimeout)
	defer cancel()
	nodes, meta := q.selection.page(s.nodes.List())
	items := s.statuses(ctx, nodes)
	if r.Context().Err() != nil {
		panic(http.ErrAbortHandler) // the client has disconnected
	}
	if form == table() {
		writeJSON(w, form, http.StatusOK, statusTable(items, meta, includeObject(q.query)))
		return nil
	}
	writeJSON(w, form, http.StatusOK, diagnostics.NodeStatusList{TypeMeta: typeMeta("NodeStatusList"), ListMeta: meta, Items: items})
	return nil
}

// statuses returns the statuses of the nodes, in their order.
func (s *Server) statuses(ctx context.Context, nodes []Node) []diagnostics.NodeStatus {
	items := make([]diagnostics.NodeStatus, len(nodes))
	group := errgroup.Group{}
	group.SetLimit(maxParallel)
	for i, node := range nodes {
		group.Go(func() error {
			items[i] = s.status(ctx, node)
			return nil
		})
	}
	_ = group.Wait() // always nil
	return items
}

// status returns the status that the node's agent reports, or why it does not.
func (s *Server) status(ctx context.Context, node Node) diagnostics.NodeStatus {
	o := diagnostics.NodeStatus{}
	message := node.NoAgent
	if message == "" {
		if err := s.askStatus(ctx, node, &o); err != nil {
			o = diagnostics.NodeStatus{}
			message = explain(node.Name, err)
		}
	}
	limitStatus(&o.Status)
	o.TypeMeta, o.ObjectMeta = typeMeta("NodeStatus"), metav1.ObjectMeta{Name: node.Name, Labels: node.Labels}
	o.Status.Error, o.Status.NoAgent, o.Status.Subnet, o.Status.HostIP = message, node.IsExpected, node.Subnet, ""
	if node.HostIP.IsValid() {
		o.Status.HostIP = node.HostIP.String()
	}
	return o
}

func (s *Server) askStatus(ctx context.Context, node Node, into *diagnostics.NodeStatus) error {
	if ctx.Err() != nil {
		return errNotAsked
	}
	own, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	err := s.Agents.Get(own, node.Name, node.HostIP, diagnostics.StatusPath, nil, into)
	if err != nil && ctx.Err() != nil && !errors.Is(own.Err(), context.DeadlineExceeded) {
		return errNotAsked
	}
	return err
}

// limitStatus limits what an agent reports to what clients can print. An agent of a compromised node must not prevent that a list is read.
func limitStatus(o *diagnostics.NodeStatusStatus) {
	for _, s := range []*string{&o.AgentVersion, &o.OVSVersion, &o.Datapath, &o.Mode} {
		*s = printable(*s, maxName)
	}
	o.NotReady, o.SwitchError = printable(o.NotReady, maxMessage), printable(o.SwitchError, maxMessage)
	o.RefusedFlows = slices.Clip(o.RefusedFlows[:min(len(o.RefusedFlows), maxRefusedFlows)])
	for i := range o.RefusedFlows {
		o.RefusedFlows[i] = printable(o.RefusedFlows[i], maxMessage)
	}
	o.PeerProblems = slices.Clip(o.PeerProblems[:min(len(o.PeerProblems), maxPeerProblems)])
	for i := range o.PeerProblems {
		o.PeerProblems[i] = diagnostics.PeerProblem{Node: printable(o.PeerProblems[i].Node, maxNodeName), Problem: printable(o.PeerProblems[i].Problem, maxMessage)}
	}
	o.EgressIPsNotPlaced = slices.Clip(o.EgressIPsNotPlaced[:min(len(o.EgressIPsNotPlaced), maxEgressIPs)])
	for i, p := range o.EgressIPsNotPlaced {
		o.EgressIPsNotPlaced[i] = diagnostics.EgressIPNotPlaced{IP: printable(p.IP, maxName), Problem: printable(p.Problem, maxMessage)}
	}
	o.Drops = slices.Clip(o.Drops[:min(len(o.Drops), maxDrops)])
	for i := range o.Drops {
		o.Drops[i].Table, o.Drops[i].Reason = printable(o.Drops[i].Table, maxName), printable(o.Drops[i].Reason, maxName)
	}
	if !isValidTime(o.Started) {
		o.Started = metav1.Time{}
	}
	for _, t := range []**metav1.Time{&o.LastWrite, &o.LastAudit} {
		if *t != nil && !isValidTime(**t) {
			*t = nil
		}
	}
}

// isValidTime reports whether clients can parse the time.
func isValidTime(t metav1.Time) bool {
	year := t.UTC().Year()
	return year >= 1970 && year <= lastYear
}

// typeMeta returns that of a kind.
func typeMeta(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{Kind: kind, APIVersion: groupVersion().String()}
}
