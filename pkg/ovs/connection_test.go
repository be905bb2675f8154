package ovs

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func addrOf(s string) netip.Addr { return netip.MustParseAddr(s) }

// The lines are those of both datapaths, without options, with -s and with -m.
func TestParseConnection(t *testing.T) {
	const tuples = "orig=(src=10.0.0.1,dst=10.0.0.9,sport=1000,dport=80),reply=(src=10.0.0.9,dst=10.0.0.1,sport=80,dport=1000)"
	ports := Connection{
		Zone: 7, Protocol: 6,
		Original: Tuple{Src: addrOf("10.0.0.1"), Dst: addrOf("10.0.0.9"), SrcPort: 1000, DstPort: 80},
		Reply:    Tuple{Src: addrOf("10.0.0.9"), Dst: addrOf("10.0.0.1"), SrcPort: 80, DstPort: 1000},
	}
	with := func(change func(*Connection)) Connection {
		c := ports
		change(&c)
		return c
	}
	for _, c := range []struct {
		name, line string
		want       Connection
	}{
		{"tcp", "tcp," + tuples + ",zone=7,protoinfo=(state=ESTABLISHED)", ports},
		{"udp", "udp," + tuples + ",zone=7", with(func(c *Connection) { c.Protocol = 17 })},
		{"sctp of the kernel", "sctp," + tuples + ",zone=7,protoinfo=(state=ESTABLISHED,vtag_orig=1,vtag_reply=2)", with(func(c *Connection) { c.Protocol = 132 })},
		{"sctp of userspace", "sctp,orig=(src=10.0.0.1,dst=10.0.0.9,sport=0,dport=0),reply=(src=10.0.0.9,dst=10.0.0.1,sport=0,dport=0),zone=7", Connection{
			Zone: 7, Protocol: 132,
			Original: Tuple{Src: addrOf("10.0.0.1"), Dst: addrOf("10.0.0.9")}, Reply: Tuple{Src: addrOf("10.0.0.9"), Dst: addrOf("10.0.0.1")},
		}},
		{"icmp", "icmp,orig=(src=10.0.0.1,dst=10.0.0.9,id=22,type=8,code=0),reply=(src=10.0.0.9,dst=10.0.0.1,id=22,type=0,code=0),zone=7", Connection{
			Zone: 7, Protocol: 1,
			Original: Tuple{Src: addrOf("10.0.0.1"), Dst: addrOf("10.0.0.9"), ICMP: ICMP{ID: 22, Type: 8}},
			Reply:    Tuple{Src: addrOf("10.0.0.9"), Dst: addrOf("10.0.0.1"), ICMP: ICMP{ID: 22}},
		}},
		{"a number for a protocol", "47,orig=(src=10.0.0.1,dst=10.0.0.9,sport=3,dport=4),reply=(src=10.0.0.9,dst=10.0.0.1,sport=4,dport=3),zone=7", Connection{
			Zone: 7, Protocol: 47,
			Original: Tuple{Src: addrOf("10.0.0.1"), Dst: addrOf("10.0.0.9")}, Reply: Tuple{Src: addrOf("10.0.0.9"), Dst: addrOf("10.0.0.1")},
		}},
		{"IPv6", "tcp,orig=(src=fc00::1,dst=fc00::9,sport=1,dport=80),reply=(src=fc00::9,dst=fc00::1,sport=80,dport=1),zone=65535,protoinfo=(state=SYN_SENT)", Connection{
			Zone: 65535, Protocol: 6,
			Original: Tuple{Src: addrOf("fc00::1"), Dst: addrOf("fc00::9"), SrcPort: 1, DstPort: 80},
			Reply:    Tuple{Src: addrOf("fc00::9"), Dst: addrOf("fc00::1"), SrcPort: 80, DstPort: 1},
		}},
		{"translated", "udp,orig=(src=10.0.0.1,dst=172.30.0.10,sport=1000,dport=53),reply=(src=10.0.0.77,dst=10.0.0.1,sport=8053,dport=1000),zone=7", Connection{
			Zone: 7, Protocol: 17,
			Original: Tuple{Src: addrOf("10.0.0.1"), Dst: addrOf("172.30.0.10"), SrcPort: 1000, DstPort: 53},
			Reply:    Tuple{Src: addrOf("10.0.0.77"), Dst: addrOf("10.0.0.1"), SrcPort: 8053, DstPort: 1000},
		}},
		{"mark, labels, time-out, helper", "tcp," + tuples + ",zone=7,timeout=86399,mark=4294967295,labels=0x4000000000000000000000000006,protoinfo=(state=TIME_WAIT),helper=ftp",
			with(func(c *Connection) { c.Mark, c.Closed = 1<<32-1, true })},
		{"-m -s of the kernel", "tcp,orig=(src=10.0.0.1,dst=10.0.0.9,sport=1000,dport=80,packets=5,bytes=300),reply=(src=10.0.0.9,dst=10.0.0.1,sport=80,dport=1000,packets=4,bytes=200)," +
			"start=2026-01-01T00:00:00.000,id=3037013376,zone=7,status=SEEN_REPLY|ASSURED|CONFIRMED,timeout=9,mark=1," +
			"protoinfo=(state_orig=ESTABLISHED,state_reply=ESTABLISHED,wscale_orig=7,flags_orig=WINDOW_SCALE|SACK_PERM)," +
			"parent=(src=10.9.0.1,dst=10.9.0.9,sport=1,dport=21)", with(func(c *Connection) { c.Mark = 1 })},
		{"unknown fields", "tcp," + tuples + ",zone=7,colour=(shade=9,tone=1),tail=x", ports},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, ok, err := ParseConnection([]byte(c.line), DatapathNetdev, Zones{1, 0xffff})
			if err != nil || !ok {
				t.Fatalf("got ok %t, error %v, want true, no error", ok, err)
			}
			if diff := cmp.Diff(c.want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Errorf("connection (-want +got):\n%s", diff)
			}
		})
	}
	for name, line := range map[string]string{
		"zone of the host": "tcp," + tuples + ",protoinfo=(state=ESTABLISHED)",
		"another zone":     "tcp," + tuples + ",zone=6,protoinfo=(state=ESTABLISHED)",
		"ICMPv6":           "icmpv6,orig=(src=fc00::1,dst=fc00::9,id=0,type=128,code=0),reply=(src=fc00::9,dst=fc00::1,id=0,type=129,code=0),zone=7",
		"empty":            "",
	} {
		if _, ok, err := ParseConnection([]byte(line), DatapathNetdev, Zones{7, 0xffff}); ok || err != nil {
			t.Errorf("%s: got ok %t, error %v, want false, no error", name, ok, err)
		}
	}
	for name, line := range map[string]string{
		"zone too high":       "tcp," + tuples + ",zone=65536",
		"protocol":            "quic," + tuples + ",zone=7",
		"no addresses":        "tcp,orig=(sport=1,dport=2),reply=(sport=2,dport=1),zone=7",
		"no reply":            "tcp,orig=(src=10.0.0.1,dst=10.0.0.9,sport=1000,dport=80),zone=7",
		"address":             "tcp,orig=(src=10.0.0.256,dst=10.0.0.9),reply=(src=10.0.0.9,dst=10.0.0.1),zone=7",
		"address of a device": "tcp,orig=(src=fe80::1%eth0,dst=fe80::2),reply=(src=fe80::2,dst=fe80::1),zone=7",
		"port":                "tcp,orig=(src=10.0.0.1,dst=10.0.0.9,sport=65536),reply=(src=10.0.0.9,dst=10.0.0.1),zone=7",
		"ICMP code":           "icmp,orig=(src=10.0.0.1,dst=10.0.0.9,code=256),reply=(src=10.0.0.9,dst=10.0.0.1),zone=7",
		"unterminated list":   "tcp," + tuples + ",zone=7,protoinfo=(state",
		"field without value": "tcp," + tuples + ",zone=7,confused",
		"mark":                "tcp," + tuples + ",zone=7,mark=-1",
	} {
		if _, ok, err := ParseConnection([]byte(line), DatapathNetdev, Zones{1, 0xffff}); ok || err == nil {
			t.Errorf("%s: got ok %t, no error, want an error", name, ok)
		}
	}
}

// FuzzParseConnection checks that every connection that can be parsed can be flushed.
// Closed connections have other states on the two datapaths.
func TestParseConnection_closed(t *testing.T) {
	for state, want := range map[string]struct{ kernel, userspace bool }{
		"ESTABLISHED": {}, "FIN_WAIT_1": {}, "CLOSE_WAIT": {}, "LAST_ACK": {}, "CLOSED": {},
		"CLOSING": {kernel: true}, "FIN_WAIT_2": {userspace: true}, "TIME_WAIT": {kernel: true, userspace: true},
	} {
		for datapathType, want := range map[string]bool{DatapathSystem: want.kernel, DatapathNetdev: want.userspace} {
			line := "tcp,orig=(src=10.0.0.1,dst=10.0.0.9,sport=1000,dport=80),reply=(src=10.0.0.9,dst=10.0.0.1,sport=80,dport=1000),zone=7,protoinfo=(state=" + state + ")"
			c, ok, err := ParseConnection([]byte(line), datapathType, Zones{1, 0xffff})
			if err != nil || !ok || c.Closed != want {
				t.Errorf("%s, %s: got closed %t, ok %t, error %v; want closed %t", datapathType, state, c.Closed, ok, err, want)
			}
		}
	}
}

func FuzzParseConnection(f *testing.F) {
	f.Add("tcp,orig=(src=10.0.0.1,dst=10.0.0.9,sport=1000,dport=80),reply=(src=10.0.0.9,dst=10.0.0.1,sport=80,dport=1000),zone=7,mark=1,protoinfo=(state=ESTABLISHED)")
	f.Add("icmp,orig=(src=10.0.0.1,dst=10.0.0.9,id=22,type=8,code=0),reply=(src=10.0.0.9,dst=10.0.0.1,id=22,type=0,code=0),zone=7")
	f.Add("47,orig=(src=fc00::1,dst=fc00::9),reply=(src=fc00::9,dst=fc00::1),zone=7,labels=0x6")
	f.Fuzz(func(t *testing.T, line string) {
		zones := Zones{7, 9}
		c, ok, err := ParseConnection([]byte(line), DatapathNetdev, zones)
		if !ok || err != nil {
			return
		}
		tx := &Transaction{}
		tx.Flush(c.Filter())
		if tx.Err() != nil || !zones.Contains(c.Zone) {
			t.Errorf("%+v: got error %v on Flush, want none and a zone in %+v", c, tx.Err(), zones)
		}
	})
}
