package diagnosticsserver

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// deliver explains the outputs of the packet. The last one decides.
func (t *tracer) deliver(answer *diagnostics.NodeTrace, outputs []outputOf) {
	for _, o := range outputs {
		out := diagnostics.TraceOutput{Packet: t.packetOf(o.pass.End)}
		switch o.port {
		case pipeline.PortVXLAN:
			t.toTunnel(answer, o, &out)
		case pipeline.PortTun:
			out.To = diagnostics.FromHost
			t.toHost(answer, o)
		default:
			t.toPod(answer, o, &out)
		}
		if out.To != "" {
			answer.Outputs = append(answer.Outputs, out)
		}
		if o.step.Unexpected {
			answer.Reason += fmt.Sprintf("; the deciding flow of %s was added by another program: see kubectl ovsdn flows %s --diff", o.table(), t.node)
		}
		if answer.Verdict == diagnostics.VerdictUnknown {
			return
		}
	}
	if t.request.lookup == ovs.LookupReply && answer.Verdict == diagnostics.VerdictDelivered {
		answer.Reason += t.replyNote()
	}
}

// replyNote returns what a reply may also be, which depends on the entry of its connection.
func (t *tracer) replyNote() string {
	if t.Node.BalancesServices {
		return "; its source is the service's address if the connection was opened to a service"
	}
	return "; if the connection goes through the service proxy of the host, the host receives the reply and sends it on with the service's address as its source"
}

// packetOf returns the packet with the fields at an output.
func (t *tracer) packetOf(end map[string]string) diagnostics.TracePacket {
	p := t.request.packet
	p.From, p.VNID, p.Origin, p.EgressIP, p.Endpoint = "", 0, "", "", ""
	p.Source, p.Destination = end["nw_src"], end["nw_dst"]
	if t.request.protocol != ovs.ProtocolNumberICMP {
		p.SourcePort, p.DestinationPort = portOf(end["tp_src"]), portOf(end["tp_dst"])
	}
	return p
}

func portOf(text string) uint16 {
	n, _ := strconv.ParseUint(text, 10, 16)
	return uint16(n)
}

func (t *tracer) toPod(answer *diagnostics.NodeTrace, o outputOf, out *diagnostics.TraceOutput) {
	for _, p := range t.pods {
		if p.OFPort == o.port && o.port > 0 {
			out.To = string(diagnostics.KindPod) + "/" + p.Namespace + "/" + p.Name
			answer.Verdict, answer.Reason = diagnostics.VerdictDelivered, fmt.Sprintf("pod %s/%s receives it at %s:%d", p.Namespace, p.Name, out.Packet.Destination, out.Packet.DestinationPort)
			if t.request.protocol == ovs.ProtocolNumberICMP {
				answer.Reason = fmt.Sprintf("pod %s/%s receives it at %s", p.Namespace, p.Name, out.Packet.Destination)
			}
			return
		}
	}
	answer.Verdict, answer.Reason = diagnostics.VerdictUnknown, fmt.Sprintf("%s outputs it to port %d, which is no pod's", o.table(), o.port)
	if o.port == ovs.NoPort {
		answer.Reason = fmt.Sprintf("%s may output it to several ports: %s", o.table(), o.step.Actions)
	}
}

func (t *tracer) toTunnel(answer *diagnostics.NodeTrace, o outputOf, out *diagnostics.TraceOutput) {
	out.HostIP, out.VNID, out.To = o.pass.End["tun_dst"], t.tunnelID(o), "node "+o.pass.End["tun_dst"]
	addr, err := netip.ParseAddr(out.HostIP)
	if err != nil {
		answer.Verdict, answer.Reason = diagnostics.VerdictUnknown, fmt.Sprintf("%s outputs it to the tunnel without an address", o.table())
		out.To = ""
		return
	}
	out.To = string(diagnostics.KindNode) + "/" + out.HostIP
	if name, ok := t.NodeOf(addr); ok {
		out.To = string(diagnostics.KindNode) + "/" + name
	}
	out.Packet.From, out.Packet.VNID, out.Packet.Origin = string(diagnostics.KindNode)+"/"+t.node, out.VNID, t.request.packet.Origin
	answer.Verdict = diagnostics.VerdictForwarded
	answer.Reason = fmt.Sprintf("%s sends it through the tunnel to %s (%s) with VNID %d", o.table(), out.To, out.HostIP, out.VNID)
	if ip := number(o.pass.End["reg11"]); ip != 0 && !t.inCluster(out.Packet.Destination) {
		out.Packet.EgressIP = addrOf(ip).String()
		answer.Reason += ", which hosts the egress IP " + out.Packet.EgressIP
	}
}

// tunnelID returns the VNI of a packet at an output to the tunnel. In a packet without other fields of a tunnel, the report has it as the value that a flow loaded only.
func (t *tracer) tunnelID(o outputOf) uint32 {
	if text, ok := o.pass.End["tun_id"]; ok {
		return vnidOf(text)
	}
	id := uint32(0)
	for i := range t.trace.Passes {
		for _, f := range t.trace.Passes[i].Flows {
			for _, a := range f.Actions {
				value := ""
				if load, ok := strings.CutPrefix(a.Text, "load:"); ok && strings.HasSuffix(load, "->"+pipeline.TunnelID()) {
					value = strings.TrimSuffix(load, "->"+pipeline.TunnelID())
				}
				for _, note := range a.Notes {
					if v, ok := strings.CutPrefix(note, pipeline.TunnelID()+" is now "); ok {
						value = v
					}
				}
				if value != "" {
					id = vnidOf(value)
				}
			}
		}
	}
	return id
}

// toHost explains an output to tun0 by the tables that the packet has passed.
func (t *tracer) toHost(answer *diagnostics.NodeTrace, o outputOf) {
	answer.Verdict = diagnostics.VerdictForwarded
	to := func(what string) { answer.Reason = fmt.Sprintf("%s sends it to the host, %s", o.table(), what) }
	destination := o.pass.End["nw_dst"]
	switch at := o.flow.Key; {
	case t.passed(pipeline.RejectTable):
		service, _ := t.service()
		answer.Verdict, answer.Objects = diagnostics.VerdictDropped, service
		name := destination + ":" + o.pass.End["tp_dst"]
		if len(service) > 0 {
			name = service[0].Object + " (" + name + ")"
		}
		answer.Reason = fmt.Sprintf("%s has no endpoints: %s sends the packet to the host, which rejects it", name, o.table())
	case at.Table == pipeline.CommitTable && at.Priority == pipeline.ReplyToProxyPriority:
		to("whose service proxy restores the service's address in the reply")
	case t.passed(pipeline.ServiceTable) && !t.Node.BalancesServices && t.isService(destination): // outside endpoints have passed the tables below
		answer.Objects, _ = t.service()
		to("whose service proxy selects an endpoint")
	case t.passed(pipeline.EgressIPOutputTable):
		to("which sends it out of the cluster with the egress IP " + o.pass.End["nw_src"])
	case t.passed(pipeline.EgressIPTable):
		to("which routes it to " + destination + " outside of the pod network")
	default:
		to("which has the address " + destination)
	}
}

func (t *tracer) isService(text string) bool {
	addr, err := netip.ParseAddr(text)
	return err == nil && t.Node.ServiceNetwork.Contains(addr)
}

// passed reports whether the packet passed the table.
func (t *tracer) passed(table int) bool {
	_, ok := t.lastIn(table)
	return ok
}

func (t *tracer) lastIn(table int) (last place, ok bool) {
	for i := range t.trace.Passes {
		for _, at := range t.places(i) {
			if at.flow.Key.Table == table {
				last, ok = at, true
			}
		}
	}
	return last, ok
}

// service returns the service by whose flow the packet passed.
func (t *tracer) service() ([]diagnostics.TraceObject, bool) {
	at, ok := t.lastIn(pipeline.ServiceTable)
	if !ok {
		return nil, false
	}
	return at.step.Objects, len(at.step.Objects) > 0
}
