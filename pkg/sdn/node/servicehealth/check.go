package servicehealth

import (
	"net/http"
	"strconv"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/types"
)

// endpointWeight is the header with the number of local endpoints, by which load balancers may weight nodes.
const endpointWeight = "X-Load-Balancing-Endpoint-Weight"

// check answers the health checks of a Service on its port.
type check struct {
	namespace, name string
	uid             types.UID
	port            uint16

	sync     *nodeSync
	local    atomic.Int64 // ready endpoints on this node
	failures int          // to open the port; only the worker of the Service uses it
}

// answer is what kube-proxy answers.
type answer struct {
	Service struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"service"`
	LocalEndpoints      int64 `json:"localEndpoints"`
	ServiceProxyHealthy bool  `json:"serviceProxyHealthy"`
}

// ServeHTTP answers each request alike.
func (c *check) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a := answer{LocalEndpoints: c.local.Load(), ServiceProxyHealthy: c.sync.state(r.Context()).err == nil}
	a.Service.Namespace, a.Service.Name = c.namespace, c.name
	w.Header().Set(endpointWeight, strconv.FormatInt(a.LocalEndpoints, 10))
	reply(w, a.LocalEndpoints > 0 && a.ServiceProxyHealthy, a)
}
