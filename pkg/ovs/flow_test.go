package ovs

import (
	"net/netip"
	"testing"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
)

func TestFlowKeyOfEqualMatches(t *testing.T) {
	prefix := netip.MustParsePrefix
	tests := []struct {
		name  string
		flows []*Flow
		want  string
	}{
		{
			name: "every packet",
			flows: []*Flow{
				{},
				{Matches: []Match{goovs.FieldMatch("reg3", "7/0"), goovs.FieldMatch("tun_src", "1.2.3.4/0")}},
				{Matches: []Match{goovs.FieldMatch("dl_src", "0a:58:00:00:00:00/00:00:00:00:00:00")}},
			},
			want: "",
		},
		{
			name: "protocol words, aliases and order",
			flows: []*Flow{
				{Protocol: goovs.ProtocolTCPv4, InPort: 3, Matches: []Match{IPDestination(prefix("10.1.2.3/32")), goovs.TransportDestinationPort(80)}},
				{Matches: []Match{
					goovs.FieldMatch("tcp_dst", "0x50"), goovs.FieldMatch("ip_dst", "10.1.2.3/255.255.255.255"), goovs.InPortMatch(3),
					goovs.NetworkProtocol(6), goovs.DataLinkType(0x0800),
				}},
				{Protocol: goovs.ProtocolIPv4, InPort: 3, Matches: []Match{goovs.NetworkProtocol(6), goovs.FieldMatch("tp_dst", "80/0xffff"), goovs.NetworkDestination("10.1.2.3")}},
			},
			want: "tcp,in_port=3,nw_dst=10.1.2.3,tp_dst=80",
		},
		{
			name: "host bits and netmasks",
			flows: []*Flow{
				{Protocol: goovs.ProtocolIPv4, Matches: []Match{IPSource(prefix("10.1.2.3/23"))}},
				{Protocol: goovs.ProtocolIPv4, Matches: []Match{goovs.NetworkSource("10.1.3.9/23")}},
				{Protocol: goovs.ProtocolIPv4, Matches: []Match{goovs.FieldMatch("nw_src", "10.1.2.0/255.255.254.0")}},
			},
			want: "ip,nw_src=10.1.2.0/23",
		},
		{
			name: "ARP shares its fields with IP",
			flows: []*Flow{
				{Protocol: goovs.ProtocolARP, Matches: []Match{ARPSourceIP(prefix("10.1.2.3/32")), ARPTargetIP(prefix("10.1.0.0/16")), goovs.ARPOperation(1)}},
				{Protocol: goovs.ProtocolARP, Matches: []Match{goovs.NetworkSource("10.1.2.3"), goovs.NetworkDestination("10.1.0.0/16"), goovs.NetworkProtocol(1)}},
			},
			want: "arp,arp_spa=10.1.2.3,arp_tpa=10.1.0.0/16,arp_op=1",
		},
		{
			name: "IPv6",
			flows: []*Flow{
				{Protocol: goovs.ProtocolTCPv6, Matches: []Match{IPSource(prefix("fd00:1::/64")), IPDestination(prefix("fd00::5/128"))}},
				{Protocol: goovs.ProtocolIPv6, Matches: []Match{goovs.NetworkProtocol(6), goovs.IPv6Destination("FD00:0::5"), goovs.IPv6Source("fd00:1::8/64")}},
			},
			want: "tcp6,ipv6_src=fd00:1::/64,ipv6_dst=fd00::5",
		},
		{
			name: "registers, tunnel and metadata",
			flows: []*Flow{
				{Matches: []Match{Reg(0, 100), Reg(1, 0), goovs.TunnelID(5), TunnelSource(netip.MustParseAddr("192.0.2.9")), goovs.Metadata(10)}},
				{Matches: []Match{
					goovs.FieldMatch("metadata", "10"), goovs.FieldMatch("reg1", "0/0xffffffff"), goovs.FieldMatch("tunnel_id", "5"),
					goovs.TunnelSrc("192.0.2.9/32"), goovs.FieldMatch("reg0", "0x64"), Reg(0, 100),
				}},
			},
			want: "reg0=0x64,reg1=0,tun_id=0x5,tun_src=192.0.2.9,metadata=0xa",
		},
		{
			name: "IPv6 tunnel",
			flows: []*Flow{
				{Matches: []Match{TunnelSource(netip.MustParseAddr("fd00::1"))}},
				{Matches: []Match{goovs.FieldMatch("tun_ipv6_src", "fd00:0::1/128")}},
			},
			want: "tun_ipv6_src=fd00::1",
		},
		{
			name: "flags",
			flows: []*Flow{
				{Protocol: goovs.ProtocolTCPv4, Matches: []Match{goovs.ConnectionTrackingState("+trk", "-new", "+est"), goovs.TCPFlags("+syn", "-ack")}},
				{Protocol: goovs.ProtocolTCPv4, Matches: []Match{goovs.TCPFlags("-ack", "+syn"), goovs.ConnectionTrackingState("+est", "+trk", "-new")}},
			},
			want: "ct_state=-new+est+trk,tcp,tcp_flags=+syn-ack",
		},
		{
			name: "local port and MAC masks",
			flows: []*Flow{
				{InPort: goovs.PortLOCAL, Matches: []Match{goovs.DataLinkDestination("01:00:00:00:00:00/01:00:00:00:00:00"), goovs.DataLinkSource("0A:58:0a:80:00:02")}},
				{Matches: []Match{
					goovs.FieldMatch("in_port", "65534"), goovs.DataLinkDestination("ff:00:00:00:00:01/01:00:00:00:00:00"),
					goovs.FieldMatch("eth_src", "0a:58:0a:80:00:02/ff:ff:ff:ff:ff:ff"),
				}},
			},
			want: "in_port=LOCAL,dl_src=0a:58:0a:80:00:02,dl_dst=01:00:00:00:00:00/01:00:00:00:00:00",
		},
		{
			name: "a protocol without a word",
			flows: []*Flow{
				{Protocol: goovs.ProtocolIPv4, Matches: []Match{goovs.NetworkProtocol(47)}},
				{Matches: []Match{goovs.FieldMatch("ip_proto", "0x2f"), goovs.FieldMatch("eth_type", "0x800")}},
			},
			want: "ip,nw_proto=47",
		},
		{
			name: "an unnamed ethertype",
			flows: []*Flow{
				{Matches: []Match{goovs.DataLinkType(0x88cc), Reg(2, 1)}},
			},
			want: "reg2=0x1,dl_type=0x88cc",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for i, f := range tt.flows {
				f.Table, f.Priority = 7, 100
				got, err := FlowKey(f)
				if err != nil {
					t.Errorf("flow %d: got error %v, want none", i, err)
				}
				if want := (Key{Table: 7, Priority: 100, Match: tt.want}); got != want {
					t.Errorf("flow %d: got %q, want %q", i, got, want)
				}
			}
		})
	}
}

func TestFlowKey_invalidMatch(t *testing.T) {
	match := func(p goovs.Protocol, ms ...Match) *Flow { return &Flow{Protocol: p, Matches: ms} }
	field := goovs.FieldMatch
	tests := []struct {
		name string
		flow *Flow
	}{
		{"table", &Flow{Table: 254}},
		{"negative table", &Flow{Table: -1}},
		{"priority", &Flow{Priority: 65536}},
		{"address without protocol", match("", goovs.NetworkSource("10.0.0.1"))},
		{"IPv4 address in IPv6", match("ipv6", goovs.NetworkSource("10.0.0.1"))},
		{"ARP address in IP", match("ip", goovs.ARPSourceProtocolAddress("10.0.0.1"))},
		{"port without transport", match("ip", goovs.TransportDestinationPort(80))},
		{"UDP port in TCP", match("tcp", goovs.UDPDestinationPort(80))},
		{"port of later fragments", match("tcp", goovs.TransportDestinationPort(80), goovs.IPFrag(goovs.IPFragFlagLater))},
		{"two ports", match("tcp", goovs.TransportDestinationPort(80), goovs.TransportDestinationPort(81))},
		{"two protocols", match("tcp", goovs.NetworkProtocol(17))},
		{"two families", match("ip", goovs.DataLinkType(0x86dd))},
		{"protocol number alone", match("", goovs.NetworkProtocol(6))},
		{"unknown field", match("", field("reg16", "1"))},
		{"unknown word", match("igmp6")},
		{"octal", match("", field("reg0", "010"))},
		{"too large", match("", field("reg0", "0x100000000"))},
		{"mask with holes", match("ip", field("nw_src", "10.0.0.1/255.0.255.0"))},
		{"mask where none is allowed", match("", field("ct_zone", "1/3"))},
		{"bad prefix length", match("ip", field("nw_src", "10.0.0.0/33"))},
		{"TOS with ECN bits", match("ip", goovs.NetworkTOS(3))},
		{"flag both ways", match("", goovs.ConnectionTrackingState("+new", "-new"))},
		{"unknown flag", match("", goovs.ConnectionTrackingState("+odd"))},
		{"flag without sign", match("", goovs.ConnectionTrackingState("new"))},
		{"reserved port", &Flow{InPort: 65535}},
		{"invalid prefix", match("ip", IPSource(netip.Prefix{}))},
		{"IPv6 in ARP", match("arp", ARPTargetIP(netip.MustParsePrefix("fd00::/64")))},
		{"mapped address", match("ip", IPSource(netip.MustParsePrefix("::ffff:10.0.0.1/128")))},
		{"invalid tunnel source", match("", TunnelSource(netip.Addr{}))},
		{"register", match("", Reg(16, 1))},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if k, err := FlowKey(tt.flow); err == nil {
				t.Errorf("got key %q, want an error", k)
			}
		})
	}
}

func TestFlowText(t *testing.T) {
	f := &Flow{
		Table: 50, Priority: 100, Protocol: goovs.ProtocolARP, Cookie: 0x0300000000000001, IdleTimeout: 30,
		Matches: []Match{ARPTargetIP(netip.MustParsePrefix("10.129.0.0/23"))},
		Actions: []Action{goovs.Move("NXM_NX_REG0[]", "NXM_NX_TUN_ID[0..31]"), goovs.Output(1)},
	}
	got, err := FlowText(f)
	if err != nil {
		t.Fatal(err)
	}
	want := "table=50,priority=100,arp,arp_tpa=10.129.0.0/23,idle_timeout=30,cookie=0x300000000000001," +
		"actions=move:NXM_NX_REG0[]->NXM_NX_TUN_ID[0..31],output:1"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	for name, actions := range map[string][]Action{
		"none":              nil,
		"drop and more":     {goovs.Drop(), goovs.Output(1)},
		"goto_table 0":      {GotoTable(0)},
		"goto_table beyond": {GotoTable(254)},
		"sample of none":    {Sample{Point: 1}},
	} {
		if s, err := FlowText(&Flow{Actions: actions}); err == nil {
			t.Errorf("actions %s: got %s, want an error", name, s)
		}
	}
}

func TestSampleText(t *testing.T) {
	want := "sample(probability=163,collector_set_id=4739,obs_domain_id=3221225995,obs_point_id=435269352)"
	got, err := Sample{Probability: 163, CollectorSet: 4739, Domain: 3221225995, Point: 435269352}.MarshalText()
	if err != nil || string(got) != want {
		t.Errorf("got %q, error %v, want %q", got, err, want)
	}
}

func TestNoteHasPadding(t *testing.T) {
	for n, want := range map[int]int{0: 6, 1: 6, 6: 6, 7: 14, 14: 14, 15: 22} {
		if got := len(Note(make([]byte, n)).(note)); got != want {
			t.Errorf("note of %d bytes: got %d bytes, want %d", n, got, want)
		}
	}
	b, err := Note([]byte{0, 0xaa, 0xbb}).MarshalText()
	if err != nil || string(b) != "note:00.aa.bb.00.00.00" {
		t.Errorf("got %q, %v", b, err)
	}
}
