package openflow

import (
	"fmt"
	"testing"
)

// benchFlows returns n flows like those of the pipeline: tunnels, ARP, services with conntrack, policies with conjunctions.
func benchFlows(tb testing.TB, n int) []*FlowMod {
	tb.Helper()
	flows := make([]*FlowMod, n)
	for i := range flows {
		ip := fmt.Sprintf("10.%d.%d.%d", 128+i>>16&0x3f, i>>8&0xff, i&0xff)
		var text string
		switch i % 4 {
		case 0:
			text = fmt.Sprintf("table=50,priority=100,cookie=0x3000000%08x,arp,arp_tpa=%s,actions=move:NXM_NX_REG0[]->NXM_NX_TUN_ID[0..31],set_field:192.0.2.9->tun_dst,output:1", i, ip)
		case 1:
			text = fmt.Sprintf("table=60,priority=100,cookie=0x5000000%08x,tcp,nw_dst=%s,tp_dst=%d,actions=load:0x%x->NXM_NX_REG1[],load:0x2->NXM_NX_REG2[],goto_table:80", i, ip, i&0xffff, i)
		case 2:
			text = fmt.Sprintf("table=80,priority=%d,cookie=0x4000000%08x,ip,reg0=0x%x,nw_src=%s,actions=conjunction(%d,1/2)", 100+i%50, i, i, ip, i)
		case 3:
			text = fmt.Sprintf("table=60,priority=200,cookie=0x5000000%08x,udp,nw_dst=%s,tp_dst=53,actions=ct(commit,table=27,zone=7,nat(dst=10.128.0.5:5353))", i, ip)
		}
		m, err := ParseFlow(text)
		if err != nil {
			tb.Fatal(err)
		}
		flows[i] = m
	}
	return flows
}

const benchSize = 50_000

// benchDump returns the messages of a dump of the flows, each at most 64 KiB long.
func benchDump(tb testing.TB, flows []*FlowMod) [][]byte {
	tb.Helper()
	var dump [][]byte
	for len(flows) > 0 {
		n := min(len(flows), 300)
		reply := &FlowStatsReply{Part: Part{More: n < len(flows)}}
		for _, m := range flows[:n] {
			reply.Flows = append(reply.Flows, FlowStats{
				Table: m.Table, Priority: m.Priority, Cookie: m.Cookie, Match: m.Match, Instructions: m.Instructions, Packets: 5, Bytes: 7,
			})
		}
		b, err := Append(nil, 7, reply)
		if err != nil {
			tb.Fatal(err)
		}
		dump = append(dump, b)
		flows = flows[n:]
	}
	return dump
}

func BenchmarkDecodeDump(b *testing.B) {
	dump := benchDump(b, benchFlows(b, benchSize))
	b.ReportAllocs()
	for b.Loop() {
		n := 0
		for _, msg := range dump {
			_, m, err := Decode(msg)
			if err != nil {
				b.Fatal(err)
			}
			n += len(m.(*FlowStatsReply).Flows)
		}
		if n != benchSize {
			b.Fatal(n)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/benchSize, "ns/flow")
}

// BenchmarkCanonical decodes a dump and indexes it by key, as the reconciler does.
func BenchmarkCanonical(b *testing.B) {
	dump := benchDump(b, benchFlows(b, benchSize))
	b.ReportAllocs()
	for b.Loop() {
		index := make(map[FlowKey]string, benchSize)
		for _, msg := range dump {
			_, m, err := Decode(msg)
			if err != nil {
				b.Fatal(err)
			}
			flows := m.(*FlowStatsReply).Flows
			for i := range flows {
				c, err := flows[i].Instructions.Canonical()
				if err != nil {
					b.Fatal(err)
				}
				index[flows[i].Key()] = c
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/benchSize, "ns/flow")
}

func BenchmarkAppendFlowMods(b *testing.B) {
	flows := benchFlows(b, benchSize)
	var buf []byte
	b.ReportAllocs()
	for b.Loop() {
		buf = buf[:0]
		for i, m := range flows {
			var err error
			if buf, err = Append(buf, uint32(i), &BundleAdd{ID: 1, Flags: BundleAtomic, Message: m}); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/benchSize, "ns/flow")
}

func BenchmarkParseFlow(b *testing.B) {
	flows := benchFlows(b, 1000)
	texts := make([]string, len(flows))
	for i, m := range flows {
		texts[i] = m.String()
	}
	b.ReportAllocs()
	for b.Loop() {
		for _, s := range texts {
			if _, err := ParseFlow(s); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(texts)), "ns/flow")
}

func BenchmarkFlowText(b *testing.B) {
	flows := benchFlows(b, 1000)
	b.ReportAllocs()
	for b.Loop() {
		for _, m := range flows {
			_ = m.String()
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(flows)), "ns/flow")
}
