package egresspolicy

import (
	"testing"

	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/tier"
)

// A rollout that turns the export of flows on or off retains the last valid rules of invalid policies.
func TestPolicies_flowExport(t *testing.T) {
	tier.Parallel(t)
	c := newCluster(t)
	c.export = pipeline.FlowExport{Probability: 163, Domain: 7}
	c.policies.Add(egressPolicy("tenant/default", "Allow 192.0.2.0/24", "Deny 0.0.0.0/0"))
	const allow = "priority=124,reg10=0x1,nw_dst=192.0.2.0/24,actions=pass"
	const sampled = "priority=100,reg10=0x1,actions=sample(probability=163,collector_set_id=4739,obs_domain_id=7,obs_point_id=4)"
	const dropped = "priority=100,reg10=0x1,actions=drop"
	a, stop := c.start(t, "tenant/5")
	a.want(sampled, allow)
	c.policies.Modify(egressPolicy("tenant/default", "Deny *.example.com"))
	for _, next := range []struct {
		export pipeline.FlowExport
		want   string
	}{{pipeline.FlowExport{}, dropped}, {c.export, sampled}} {
		stop()
		c.export = next.export
		a, stop = c.start(t, "tenant/5")
		a.want(next.want, allow)
	}
}
