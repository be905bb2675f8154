package diagnosticsapi

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"slices"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
)

const (
	maxSamples = 4 // requests for traffic that are answered at the same time
	// maxTrafficNodes is the number of nodes of one answer, also if the client asks for more: it continues. With 30 pods on each, the answer has some 700 KiB.
	maxTrafficNodes  = 100
	maxTrafficAnswer = 768 << 10 // bytes of an agent's answer: 1,024 pods with the longest names
)

// getTraffic answers with the counters of the pods of one node, or of the selected ones. It asks the agents in parallel.
func (s *Server) getTraffic(w http.ResponseWriter, r *http.Request, q request) error {
	form, err := negotiate(r.Header)
	if err != nil {
		return err
	}
	var nodes []Node
	var meta metav1.ListMeta
	if q.name == "" {
		if q.selection.limit == 0 || q.selection.limit > maxTrafficNodes {
			q.selection.limit = maxTrafficNodes
		}
		nodes, meta = q.selection.page(s.nodes.List())
	} else {
		node, err := s.nodeNamed(q.resource, q.name)
		if err != nil {
			return err
		}
		nodes = []Node{node}
	}
	release, err := acquire(s.samples, "requests for traffic")
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := context.WithTimeout(r.Context(), listTimeout)
	defer cancel()
	items := make([]diagnostics.NodeTraffic, len(nodes))
	group := errgroup.Group{}
	group.SetLimit(maxParallel)
	for i, node := range nodes {
		group.Go(func() error {
			items[i] = s.traffic(ctx, node)
			return nil
		})
	}
	_ = group.Wait() // always nil
	if r.Context().Err() != nil {
		panic(http.ErrAbortHandler) // the client has disconnected
	}
	if q.name != "" {
		writeJSON(w, form, http.StatusOK, items[0])
		return nil
	}
	writeArray(w, form, struct {
		metav1.TypeMeta
		metav1.ListMeta `json:"metadata"`
	}{typeMeta("NodeTrafficList"), meta}, "items", len(items), func(i int) any { return &items[i] })
	return nil
}

// traffic returns the counters that the node's agent reports, or why it does not.
func (s *Server) traffic(ctx context.Context, node Node) diagnostics.NodeTraffic {
	o := diagnostics.NodeTraffic{
		TypeMeta: typeMeta("NodeTraffic"), ObjectMeta: metav1.ObjectMeta{Name: node.Name, Labels: node.Labels}, Error: node.NoAgent, NoAgent: node.IsExpected,
		Pods: []diagnostics.PodTraffic{},
	}
	if o.Error != "" {
		return o
	}
	answer, err := s.askTraffic(ctx, node)
	if err != nil {
		o.Error = explain(node.Name, err)
		return o
	}
	o.Pods, o.Truncated = answer.pods, answer.truncated
	return o
}

// askTraffic asks the agent, again while it answers another request.
func (s *Server) askTraffic(ctx context.Context, node Node) (*trafficAnswer, error) {
	if ctx.Err() != nil {
		return nil, errNotAsked
	}
	own, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	var answer *trafficAnswer
	err := whileBusy(own, statusTimeout, func() error {
		answer = &trafficAnswer{}
		return s.Agents.Get(own, node.Name, node.HostIP, diagnostics.TrafficPath, nil, answer)
	})
	switch {
	case err == nil:
		return answer, nil
	case ctx.Err() != nil && !errors.Is(own.Err(), context.DeadlineExceeded):
		return nil, errNotAsked
	}
	return nil, err
}

// trafficAnswer decodes NodeTraffic of an agent within limits.
type trafficAnswer struct {
	pods      []diagnostics.PodTraffic
	truncated bool // the agent reports more than MaxTrafficPods
}

// decode implements decoder. The array has a fixed size, beyond which elements are ignored: many short ones would take a hundred times the bytes of the answer.
func (a *trafficAnswer) decode(r io.Reader) error {
	content, err := readAll(r, maxTrafficAnswer)
	if err != nil {
		return err
	}
	var read struct {
		Pods [diagnostics.MaxTrafficPods + 1]diagnostics.PodTraffic `json:"pods"`
	}
	if err := json.Unmarshal(content, &read); err != nil {
		return &invalidAnswerError{err}
	}
	a.truncated = read.Pods[diagnostics.MaxTrafficPods] != (diagnostics.PodTraffic{})
	a.pods = slices.Clone(slices.DeleteFunc(read.Pods[:diagnostics.MaxTrafficPods], func(p diagnostics.PodTraffic) bool {
		return len(validation.IsDNS1123Label(p.Namespace)) > 0 || len(validation.IsDNS1123Subdomain(p.Name)) > 0
	}))
	return nil
}
