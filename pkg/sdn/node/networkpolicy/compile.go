// Package networkpolicy installs the flows of NetworkPolicies and ClusterNetworkPolicies for the pods of this node, and evaluates which tracked connections
// policies no longer allow; the flow store flushes them.
package networkpolicy

import (
	"fmt"
	"strconv"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	corev1 "k8s.io/api/core/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/pkg/sdn/policy"
)

// Compiler turns the clauses of an engine into flows.
type Compiler struct {
	node   pipeline.Node
	engine *policy.Engine
	local  map[policy.PodKey]map[pipeline.Owner]pipeline.Pod // sandboxes on this node; two while the runtime replaces one
	logged map[string]bool                                   // namespaces whose denied packets are logged

	scratch struct { // buffers for the clause that is being compiled
		parts  []pipeline.RulePart
		shares []pipeline.RuleShare
	}
}

// NewCompiler returns a compiler of the engine's clauses for this node.
func NewCompiler(node pipeline.Node, engine *policy.Engine) *Compiler {
	return &Compiler{node: node, engine: engine, local: map[policy.PodKey]map[pipeline.Owner]pipeline.Pod{}, logged: map[string]bool{}}
}

// AddSandbox adds a sandbox of the pod on this node, or changes it.
func (c *Compiler) AddSandbox(key policy.PodKey, owner pipeline.Owner, pod pipeline.Pod) {
	if c.local[key] == nil {
		c.local[key] = map[pipeline.Owner]pipeline.Pod{}
	}
	c.local[key][owner] = pod
}

// Compile returns the owner and the flows of a clause. Without rules that have the clause, there are no flows.
func (c *Compiler) Compile(p policy.Clause) (pipeline.Owner, pipeline.State) {
	return pipeline.Owner{Kind: pipeline.KindPolicy, Key: ownerKey(p)}, c.state(p)
}

func (c *Compiler) state(p policy.Clause) pipeline.State {
	switch {
	case p.Kind == policy.Outcome:
		return c.outcome(p)
	case p.Prefix.IsValid() && !p.Prefix.Addr().Is4():
		return pipeline.State{} // no pod and no node sends IPv6 packets
	}
	parts := c.parts(p)
	switch p.Kind {
	case policy.Target:
		var all pipeline.State
		for _, pod := range c.local[p.Pod] {
			all.Flows = append(all.Flows, c.node.PolicyTarget(pod, parts).Flows...)
		}
		return all
	case policy.Peer:
		return c.node.PolicyPeer(p.Prefix, parts)
	case policy.Nodes:
		return c.node.PolicyNodes(parts)
	case policy.NodeBlock:
		return c.node.PolicyNodeBlock(p.Prefix, parts)
	case policy.Tenant:
		return c.node.PolicyTenant(config.VNID(p.VNID), parts)
	case policy.Port:
		return c.node.PolicyPort(protocol(p.Protocol), p.Port, p.Mask, parts)
	default:
		return c.node.PolicyAnything(parts)
	}
}

// ownerKey returns the key of the clause's owner: equal for equal clauses, and the same in all versions, since flows' cookies depend on it: another key
// replaces the flows at the upgrade.
func ownerKey(p policy.Clause) string {
	switch p.Kind {
	case policy.Target:
		return "target " + p.Pod.Namespace + "/" + p.Pod.Name + "/" + string(p.Pod.UID)
	case policy.Peer:
		var text [64]byte // on the stack: most clauses are peers, and need one allocation each
		return string(p.Prefix.AppendTo(append(text[:0], "peer "...)))
	case policy.Tenant:
		return "VNID " + strconv.FormatUint(uint64(p.VNID), 10)
	case policy.Nodes:
		return "nodes"
	case policy.NodeBlock:
		return "nodes in " + p.Prefix.String()
	case policy.Port:
		return fmt.Sprintf("port %s %d/%#x", p.Protocol, p.Port, p.Mask)
	case policy.Outcome:
		return "rule " + strconv.FormatUint(uint64(p.ID), 10)
	default:
		return "anything"
	}
}

// protocol returns the protocol as OVS names it. NetworkPolicyPort.protocol has no other values.
func protocol(p corev1.Protocol) goovs.Protocol {
	switch p {
	case corev1.ProtocolUDP:
		return goovs.ProtocolUDPv4
	case corev1.ProtocolSCTP:
		return pipeline.ProtocolSCTP
	default:
		return goovs.ProtocolTCPv4
	}
}

// parts returns the conjunction actions of the clause, which are valid until the next call.
func (c *Compiler) parts(p policy.Clause) []pipeline.RulePart {
	out, all := c.scratch.parts[:0], c.scratch.shares[:0]
	for _, part := range c.engine.Compile(p) {
		first := len(all)
		for _, conj := range part.Conj {
			all = append(all, pipeline.RuleShare(conj))
		}
		r := rulePart(part.Direction, part.Level)
		r.Shares = all[first:]
		out = append(out, r)
	}
	c.scratch.parts, c.scratch.shares = out, all
	return out
}

func rulePart(d policy.Direction, level policy.Level) pipeline.RulePart {
	return pipeline.RulePart{Egress: d == policy.Egress, Level: uint16(level), Admin: level.IsAdmin()}
}

func (c *Compiler) outcome(p policy.Clause) pipeline.State {
	direction, level, action, ok := c.engine.Outcome(p)
	if !ok {
		return pipeline.State{}
	}
	outcomes := map[policy.Action]pipeline.PolicyAction{
		policy.Allow: pipeline.PolicyAllow, policy.Deny: pipeline.PolicyDeny, policy.Pass: pipeline.PolicyPass,
	}
	return c.node.PolicyOutcome(p.ID, rulePart(direction, level), outcomes[action])
}

// podPolicies returns the input of the pod's own flows.
func (c *Compiler) podPolicies(key policy.PodKey) pipeline.PodPolicies {
	ingress, egress := c.engine.Isolated(key)
	return pipeline.PodPolicies{
		Evaluated: ingress || egress || len(c.engine.Compile(policy.Clause{Kind: policy.Target, Pod: key})) > 0,
		Ingress:   ingress, Egress: egress,
		Logged: c.logged[key.Namespace],
	}
}
