// Package policies keeps the rules of network policies on the switch, for the pods of this node.
package policies

import (
	"fmt"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	corev1 "k8s.io/api/core/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/policy"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// Compiler turns the pieces of an engine into flows.
type Compiler struct {
	node   pipeline.Node
	engine *policy.Engine
	local  map[policy.PodKey]map[pipeline.Owner]pipeline.Pod // a pod that gets a new sandbox has two for a while
	logged map[string]bool                                   // namespaces whose denied packets are logged

	scratch struct { // of the piece that is being compiled
		parts  []pipeline.RulePart
		shares []pipeline.RuleShare
	}
}

// NewCompiler returns a compiler for this node, of what this engine says.
func NewCompiler(node pipeline.Node, engine *policy.Engine) *Compiler {
	return &Compiler{node: node, engine: engine, local: map[policy.PodKey]map[pipeline.Owner]pipeline.Pod{}, logged: map[string]bool{}}
}

// Place makes a sandbox on this node the pod's.
func (c *Compiler) Place(key policy.PodKey, owner pipeline.Owner, pod pipeline.Pod) {
	if c.local[key] == nil {
		c.local[key] = map[pipeline.Owner]pipeline.Pod{}
	}
	c.local[key][owner] = pod
}

// Compile returns what a piece is on the switch, which is nothing when no rule has it.
func (c *Compiler) Compile(p policy.Piece) (pipeline.Owner, pipeline.State) {
	owner := pipeline.Owner{Kind: pipeline.KindPolicy, Key: name(p)}
	if p.Kind == policy.Outcome {
		return owner, c.outcome(p)
	}
	parts := c.parts(p)
	switch p.Kind {
	case policy.Target:
		var all pipeline.State
		for _, pod := range c.local[p.Pod] {
			all.Flows = append(all.Flows, c.node.PolicyTarget(pod, parts).Flows...)
		}
		return owner, all
	case policy.Peer:
		if !p.Prefix.Addr().Is4() {
			return owner, pipeline.State{} // pods have no other addresses, so that nothing comes from there
		}
		return owner, c.node.PolicyPeer(p.Prefix, parts)
	case policy.Nodes:
		return owner, c.node.PolicyNodes(parts)
	case policy.NodeBlock:
		if !p.Prefix.Addr().Is4() {
			return owner, pipeline.State{}
		}
		return owner, c.node.PolicyNodeBlock(p.Prefix, parts)
	case policy.Tenant:
		return owner, c.node.PolicyTenant(config.VNID(p.VNID), parts)
	case policy.Port:
		return owner, c.node.PolicyPort(protocol(p.Protocol), p.Port, p.Mask, parts)
	default:
		return owner, c.node.PolicyAnything(parts)
	}
}

// name is how the owner is called, alike for equal pieces.
func name(p policy.Piece) string {
	switch p.Kind {
	case policy.Target:
		return fmt.Sprintf("target %s/%s", p.Pod.Namespace, p.Pod.Name)
	case policy.Peer:
		var text [64]byte // long enough, so that the most frequent of names costs one allocation
		return string(p.Prefix.AppendTo(append(text[:0], "peer "...)))
	case policy.Tenant:
		return fmt.Sprintf("VNID %d", p.VNID)
	case policy.Nodes:
		return "nodes"
	case policy.NodeBlock:
		return "nodes in " + p.Prefix.String()
	case policy.Port:
		return fmt.Sprintf("port %s %d/%#x", p.Protocol, p.Port, p.Mask)
	case policy.Outcome:
		return fmt.Sprintf("rule %d", p.ID)
	default:
		return "anything"
	}
}

// protocol is OVS' word. Policies have no others (NetworkPolicyPort.protocol).
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

// parts are valid until the next piece.
func (c *Compiler) parts(p policy.Piece) []pipeline.RulePart {
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

func (c *Compiler) outcome(p policy.Piece) pipeline.State {
	direction, level, action, ok := c.engine.Outcome(p)
	if !ok {
		return pipeline.State{}
	}
	outcomes := map[policy.Action]pipeline.PolicyAction{
		policy.Allow: pipeline.PolicyAllow, policy.Deny: pipeline.PolicyDeny, policy.Pass: pipeline.PolicyPass,
	}
	return c.node.PolicyOutcome(p.ID, rulePart(direction, level), outcomes[action])
}

// podPolicies is what the pod's own flows have to know.
func (c *Compiler) podPolicies(key policy.PodKey) pipeline.PodPolicies {
	ingress, egress := c.engine.Isolated(key)
	return pipeline.PodPolicies{
		Judged:  ingress || egress || len(c.engine.Compile(policy.Piece{Kind: policy.Target, Pod: key})) > 0,
		Ingress: ingress, Egress: egress,
		Logged: c.logged[key.Namespace],
	}
}
