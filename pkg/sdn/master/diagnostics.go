package master

import (
	"context"
	"crypto/tls"
	"sync"

	"github.com/ovsdn/ovsdn/pkg/sdn/master/diagnosticsapi"
	"github.com/ovsdn/ovsdn/pkg/sdn/metrics"
)

// serveDiagnostics returns the routes of the diagnostics API, which the leader and the other controllers serve. Until the context ends, goroutines of the
// group watch what the API reads. Without a server of metrics there is none.
func (m *master) serveDiagnostics(ctx context.Context, group *sync.WaitGroup) ([]metrics.Route, error) {
	if m.Metrics.Address == "0" {
		return nil, nil
	}
	agents := diagnosticsapi.NewHTTPSAgents(diagnosticsapi.AgentPort, m.agentTLS)
	server, err := diagnosticsapi.New(ctx, diagnosticsapi.Config{
		Kube: m.clients.users.Kube, Network: m.clients.users.Network, Policies: m.clients.usersPolicies, Agents: agents, Accept: metrics.Accept,
	})
	if err != nil {
		return nil, err
	}
	group.Go(func() {
		defer agents.Close()
		server.Run(ctx)
	})
	var routes []metrics.Route
	for _, prefix := range diagnosticsapi.Prefixes() {
		routes = append(routes, metrics.Route{Prefix: prefix, Handler: server})
	}
	return routes, nil
}

// agentTLS returns the TLS configuration of a connection to the agent of a node; nil while the controller has no certificate.
func (m *master) agentTLS(node string) *tls.Config {
	if m.credentials.Authority() == nil {
		return nil
	}
	return m.credentials.ClientTLS(node)
}
