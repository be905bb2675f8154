package ovs

import (
	"bufio"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func addrOf(s string) netip.Addr { return netip.MustParseAddr(s) }

// Lines as both datapaths print them, plain, with -s and with -m.
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
			with(func(c *Connection) { c.Mark = 1<<32 - 1 })},
		{"-m -s of the kernel", "tcp,orig=(src=10.0.0.1,dst=10.0.0.9,sport=1000,dport=80,packets=5,bytes=300),reply=(src=10.0.0.9,dst=10.0.0.1,sport=80,dport=1000,packets=4,bytes=200)," +
			"start=2026-01-01T00:00:00.000,id=3037013376,zone=7,status=SEEN_REPLY|ASSURED|CONFIRMED,timeout=9,mark=1," +
			"protoinfo=(state_orig=ESTABLISHED,state_reply=ESTABLISHED,wscale_orig=7,flags_orig=WINDOW_SCALE|SACK_PERM)," +
			"parent=(src=10.9.0.1,dst=10.9.0.9,sport=1,dport=21)", with(func(c *Connection) { c.Mark = 1 })},
		{"something new", "tcp," + tuples + ",zone=7,colour=(shade=9,tone=1),tail=x", ports},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, ok, err := parseConnection([]byte(c.line), Zones{1, 0xffff})
			if err != nil || !ok {
				t.Fatalf("ok %v, error %v", ok, err)
			}
			if diff := cmp.Diff(c.want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	for name, line := range map[string]string{
		"the host's own": "tcp," + tuples + ",protoinfo=(state=ESTABLISHED)",
		"another zone":   "tcp," + tuples + ",zone=6,protoinfo=(state=ESTABLISHED)",
		"ICMPv6":         "icmpv6,orig=(src=fc00::1,dst=fc00::9,id=0,type=128,code=0),reply=(src=fc00::9,dst=fc00::1,id=0,type=129,code=0),zone=7",
		"no line":        "",
	} {
		if _, ok, err := parseConnection([]byte(line), Zones{7, 0xffff}); ok || err != nil {
			t.Errorf("%s: ok %v, error %v", name, ok, err)
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
		"a list without end":  "tcp," + tuples + ",zone=7,protoinfo=(state",
		"a word":              "tcp," + tuples + ",zone=7,confused",
		"mark":                "tcp," + tuples + ",zone=7,mark=-1",
	} {
		if _, ok, err := parseConnection([]byte(line), Zones{1, 0xffff}); ok || err == nil {
			t.Errorf("%s: ok %v, no error", name, ok)
		}
	}
}

// Whatever vswitchd prints, what comes out can be flushed.
func FuzzParseConnection(f *testing.F) {
	f.Add("tcp,orig=(src=10.0.0.1,dst=10.0.0.9,sport=1000,dport=80),reply=(src=10.0.0.9,dst=10.0.0.1,sport=80,dport=1000),zone=7,mark=1,protoinfo=(state=ESTABLISHED)")
	f.Add("icmp,orig=(src=10.0.0.1,dst=10.0.0.9,id=22,type=8,code=0),reply=(src=10.0.0.9,dst=10.0.0.1,id=22,type=0,code=0),zone=7")
	f.Add("47,orig=(src=fc00::1,dst=fc00::9),reply=(src=fc00::9,dst=fc00::1),zone=7,labels=0x6")
	f.Fuzz(func(t *testing.T, line string) {
		zones := Zones{7, 9}
		c, ok, err := parseConnection([]byte(line), zones)
		if !ok || err != nil {
			return
		}
		tx := &Transaction{}
		tx.Forget(c.Whole())
		if tx.Err() != nil || !zones.Contain(c.Zone) {
			t.Errorf("%+v: %v", c, tx.Err())
		}
	})
}

func readReply(reply string) (lines []string, err error) {
	// A small buffer, so that a text comes in many pieces.
	r := replyReader{Reader: bufio.NewReaderSize(strings.NewReader(reply), 16)}
	err = r.read(func(line []byte) { lines = append(lines, string(line)) })
	return lines, err
}

func TestReplyReader(t *testing.T) {
	long := strings.Repeat("x", 1000)
	for reply, want := range map[string][]string{
		`{"id":0,"result":"one\ntwo\n","error":null}`:                                {"one", "two"},
		`{"error":null,"id":0,"result":"no end"}`:                                    {"no end"},
		` { "result" : "` + long + `\n` + long + `" , "id" : 12 , "error" : null } `: {long, long},
		`{"result":"","id":0}`:                                                       nil,
		`{"result":"\n\na","id":0}`:                                                  {"", "", "a"},
		`{"result":"\"\\\/\b\f\r\t\u00e9\u0001"}`:                                    {"\"\\/\b\f\r\té\x01"},
		`{"id":"other","result":"é"}`:                                                {"é"},
	} {
		got, err := readReply(reply)
		if err != nil {
			t.Errorf("%s: %v", reply, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", reply, diff)
		}
	}
	for _, reply := range []string{
		``, `{`, `{"result"`, `{"result":"a`, `{"result":"a\`, `{"result":"a\u00`, `{"result":"a"`, `{"result":"a";`, `{"result":"\x"}`,
		`{"result":"\u00gg"}`, `{"result":{}}`, `{"result":["a"]}`, `{"id":1}`, `[]`, `"text"`, `{"result":null,"error":null}`,
		`{"result":"` + strings.Repeat("x", maxLine+1) + `"}`,
	} {
		if got, err := readReply(reply); err == nil {
			t.Errorf("%.40s: got %q and no error", reply, got)
		}
	}
	var refused *commandError
	if _, err := readReply(`{"result":null,"error":"no such datapath\n(No such device)\n","id":0}`); !errors.As(err, &refused) || refused.reason != "no such datapath; (No such device)" {
		t.Errorf("got %v", err)
	}
}

func FuzzReplyReader(f *testing.F) {
	f.Add(`{"id":0,"result":"one\ntwo\n","error":null}`)
	f.Add(`{"id":0,"result":null,"error":"\u00e9"}`)
	f.Fuzz(func(_ *testing.T, reply string) { _, _ = readReply(reply) })
}
