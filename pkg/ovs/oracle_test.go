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

	"github.com/ovsdn/ovsdn/test/ovstest/flowmod"
	"github.com/ovsdn/ovsdn/test/seed"
)

// TestFlowKeyAgreesWithOVS compares the keys of random matches, in random forms, with the output of ovs-ofctl.
func TestFlowKeyAgreesWithOVS(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	file := filepath.Join(t.TempDir(), "flows")
	seed.Fix(t)
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
			b, err := f.MarshalText() // text of go-openvswitch: the match as written
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
			table, priority, match, ok := flowmod.Parse("ADD " + mod)
			if !ok {
				t.Fatalf("parse output of ovs-ofctl: got %s", line)
			}
			got = append(got, Key{Table: table, Priority: priority, Match: match})
		}
		for i := range max(len(got), len(want)) {
			if i >= len(got) || i >= len(want) || got[i] != want[i] {
				t.Fatalf("flow %d:\ngot  %+v (ovs-ofctl)\nwant %+v\n%s", i, got[i:], want[i:], script.String())
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
	p := rapid.SampledFrom(protocols()).Draw(t, "protocol")
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
	seen := map[string]bool{}
	transport, later := false, false
	for _, fd := range rapid.SliceOfNDistinct(rapid.SampledFrom(testFields()), 0, 12, rapid.ID).Draw(t, "fields") {
		if seen[fd.kind] || !p.satisfies(fd.needs, later) || clashes(fd.kind, seen) || fd.kind == "nw_frag" && transport {
			continue
		}
		seen[fd.kind] = true
		transport = transport || fd.needs.isTransport()
		value := drawValue(t, fd)
		later = later || value == "later"
		f.Matches = append(f.Matches, goovs.FieldMatch(fd.names, value))
	}
	f.Matches = rapid.Permutation(f.Matches).Draw(t, "order")
	if len(seen) > 0 && !seen["in_port"] {
		f.InPort = rapid.SampledFrom([]int{0, 1, maxPort, goovs.PortLOCAL}).Draw(t, "in_port")
	}
	if rapid.Bool().Draw(t, "protocol last") && f.Protocol == "" {
		slices.Reverse(f.Matches)
	}
	return f
}

// clashes reports whether the field excludes one in the match: two families of tunnel address.
func clashes(kind string, seen map[string]bool) bool {
	switch kind {
	case "tun_src", "tun_dst":
		return seen["tun_ipv6_src"] || seen["tun_ipv6_dst"]
	case "tun_ipv6_src", "tun_ipv6_dst":
		return seen["tun_src"] || seen["tun_dst"]
	}
	return false
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
		return drawInt(t, n, true)
	case formMaskedDecimal, formHex:
		all := ^uint64(0) >> (64 - fd.bits)
		s := drawInt(t, rapid.Uint64Max(all).Draw(t, "value"), true)
		if masked {
			s += "/" + drawInt(t, rapid.OneOf(rapid.Uint64Max(all), rapid.Just(uint64(0)), rapid.Just(all)).Draw(t, "mask"), true)
		}
		return s
	case formMAC:
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
	t.Fatalf("values of field %s are not defined", fd.names)
	return ""
}
