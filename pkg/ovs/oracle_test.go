package ovs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	"pgregory.net/rapid"
)

// TestFlowKeyAgreesWithOVS writes random matches in random ways and has ovs-ofctl print them: its text must be the key's.
func TestFlowKeyAgreesWithOVS(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	file := filepath.Join(t.TempDir(), "flows")
	rapid.Check(t, func(t *rapid.T) {
		flows := rapid.SliceOfN(rapid.Custom(drawFlow), 1, 50).Draw(t, "flows")
		var script strings.Builder
		var want []Key
		for _, f := range flows {
			k, err := FlowKey(f)
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, k)
			b, err := f.MarshalText() // go-openvswitch's text: the match as it was written
			if err != nil {
				t.Fatal(err)
			}
			script.Write(b)
			script.WriteByte('\n')
		}
		if err := os.WriteFile(file, []byte(script.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("ovs-ofctl", "-O", "OpenFlow14", "parse-flows", file).Output()
		if err != nil {
			t.Fatalf("ovs-ofctl: %v\n%s", err, script.String())
		}
		var got []Key
		for line := range strings.Lines(string(out)) {
			_, mod, ok := strings.Cut(line, "): ADD ")
			if !ok {
				continue
			}
			k, ok := parseFlowMod("ADD " + mod)
			if !ok {
				t.Fatalf("not understood: %s", line)
			}
			got = append(got, k)
		}
		for i := range max(len(got), len(want)) {
			if i >= len(got) || i >= len(want) || got[i] != want[i] {
				t.Fatalf("flow %d:\nOVS %+v\nwe  %+v\n%s", i, got[i:], want[i:], script.String())
			}
		}
	})
}

func drawFlow(t *rapid.T) *Flow {
	f := &Flow{
		Table:    rapid.IntRange(0, maxTable).Draw(t, "table"),
		Priority: rapid.OneOf(rapid.IntRange(0, maxPriority), rapid.Just(32768)).Draw(t, "priority"),
		Actions:  []Action{goovs.Drop()},
	}
	protocols := protocols()
	p := rapid.SampledFrom(append(protocols[:], protocol{})).Draw(t, "protocol")
	if p.word != "" {
		if rapid.Bool().Draw(t, "by word") {
			f.Protocol = goovs.Protocol(p.word)
		} else {
			f.Matches = append(f.Matches, goovs.FieldMatch(either(t, "dl_type", "eth_type"), drawInt(t, uint64(p.eth), true)))
			if p.ip >= 0 {
				f.Matches = append(f.Matches, goovs.FieldMatch(either(t, "nw_proto", "ip_proto"), drawInt(t, uint64(p.ip), true)))
			}
		}
	}
	fs := fields{eth: -1, proto: -1}
	if p.word != "" {
		fs.eth, fs.proto = p.eth, p.ip
	}
	seen := map[fieldID]bool{}
	for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom(fieldNames()), 0, 12, rapid.ID).Draw(t, "fields") {
		fd, ok := lookupField(name)
		if !ok {
			t.Fatalf("no field %s", name)
		}
		arpShared := fs.satisfies(needsARP) && fd.needs == needsIPv4
		if seen[fd.id] || arpShared || !fs.satisfies(fd.needs) || fs.clashes(fd.id, seen) {
			continue
		}
		seen[fd.id] = true
		value := drawValue(t, fd)
		if fd.id == fieldNWFrag {
			fs.text[fieldNWFrag] = "nw_frag=" + value
		}
		f.Matches = append(f.Matches, goovs.FieldMatch(name, value))
	}
	f.Matches = rapid.Permutation(f.Matches).Draw(t, "order")
	if len(seen) > 0 && !seen[fieldInPort] {
		f.InPort = rapid.SampledFrom([]int{0, 1, maxPort, goovs.PortLOCAL}).Draw(t, "in_port")
	}
	if rapid.Bool().Draw(t, "protocol last") && f.Protocol == "" {
		slices.Reverse(f.Matches)
	}
	return f
}

// clashes keeps out what excludes each other: two kinds of tunnel address, and later fragments' ports.
func (fs *fields) clashes(id fieldID, seen map[fieldID]bool) bool {
	switch id {
	case fieldTunSrc, fieldTunDst:
		return seen[fieldTunIPv6Src] || seen[fieldTunIPv6Dst]
	case fieldTunIPv6Src, fieldTunIPv6Dst:
		return seen[fieldTunSrc] || seen[fieldTunDst]
	case fieldNWFrag:
		for id := fieldICMPType; id < numFields; id++ {
			if seen[id] {
				return true
			}
		}
	}
	return false
}

// fieldNames are all names but those of the protocol itself.
func fieldNames() []string {
	names := strings.Fields(`pkt_mark conj_id ct_state ct_zone ct_mark tun_id tunnel_id tun_src tun_dst tun_ipv6_src tun_ipv6_dst
		metadata in_port dl_src eth_src dl_dst eth_dst nw_src ip_src nw_dst ip_dst arp_spa arp_tpa ipv6_src ipv6_dst arp_op
		arp_sha arp_tha nw_tos nw_ecn ip_ecn nw_ttl nw_frag ip_frag icmp_type icmp_code icmpv6_type icmpv6_code
		tp_src tp_dst tcp_src tcp_dst udp_src udp_dst sctp_src sctp_dst tcp_flags`)
	for n := range maxReg + 1 {
		names = append(names, fmt.Sprintf("reg%d", n))
	}
	return names
}

func either(t *rapid.T, names ...string) string {
	return rapid.SampledFrom(names).Draw(t, "name")
}

func drawInt(t *rapid.T, n uint64, exact bool) string {
	s := fmt.Sprintf(rapid.SampledFrom([]string{"%d", "%#x"}).Draw(t, "base"), n)
	if !exact && rapid.Bool().Draw(t, "masked") {
		s += "/" + drawInt(t, rapid.Uint64().Draw(t, "mask"), true)
	}
	return s
}

func drawValue(t *rapid.T, fd field) string {
	masked := rapid.Bool().Draw(t, "masked")
	switch fd.form {
	case formDecimal, formTOS:
		n := rapid.Uint64Max(1<<fd.bits-1).Draw(t, "value")
		if fd.form == formTOS {
			n &^= 3
		}
		if fd.id == fieldARPOp {
			n &= 0xff // ovs-ofctl keeps eight bits
		}
		return drawInt(t, n, true)
	case formMaskedDecimal, formHex:
		all := ^uint64(0) >> (64 - fd.bits)
		s := drawInt(t, rapid.Uint64Max(all).Draw(t, "value"), true)
		if masked {
			s += "/" + drawInt(t, rapid.OneOf(rapid.Uint64Max(all), rapid.Just(uint64(0)), rapid.Just(all)).Draw(t, "mask"), true)
		}
		return s
	case formMaskedMAC, formMAC:
		mac := func() string {
			b := rapid.SliceOfN(rapid.Byte(), 6, 6).Draw(t, "mac")
			return fmt.Sprintf(either(t, "%02x:%02x:%02x:%02x:%02x:%02x", "%02X:%02X:%02X:%02X:%02X:%02X"), b[0], b[1], b[2], b[3], b[4], b[5])
		}
		s := mac()
		if masked {
			s += "/" + either(t, mac(), "ff:ff:ff:ff:ff:ff", "00:00:00:00:00:00", "01:00:00:00:00:00")
		}
		return s
	case formIPv4:
		b := rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "ip")
		s := fmt.Sprintf("%d.%d.%d.%d", b[0], b[1], b[2], b[3])
		if masked {
			s += "/" + either(t, "0", "1", "8", "23", "31", "32", "255.255.254.0", "255.255.255.255", "0.0.0.0")
		}
		return s
	case formIPv6:
		s := either(t, "fd00::1", "FD00:0:0:1::", "2001:db8:1:2:3:4:5:6", "::ffff:10.1.2.3", "fe80:0000::0a58:0aff:fe80:2")
		if masked {
			s += "/" + either(t, "0", "10", "64", "127", "128", "ffff:ffff::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")
		}
		return s
	case formPort:
		return either(t, "1", "16", "LOCAL", "local", "65534", "65279")
	case formFrag:
		return either(t, "yes", "no", "first", "later", "not_later")
	case formCTState:
		return either(t, "+trk", "-trk", "+est+trk", "+trk-new+rpl", "+dnat+snat+trk-inv+rel")
	case formTCPFlags:
		return either(t, "+syn-ack", "-ack+syn", "+ns+cwr+ece", "+fin+rst+psh-urg")
	}
	t.Fatalf("no values for %s", fd.name)
	return ""
}
