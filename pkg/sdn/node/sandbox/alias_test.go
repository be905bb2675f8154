package sandbox

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// realPod returns a pod with names of the usual lengths in Kubernetes and containerd.
func realPod(namespace, name string) Pod {
	return Pod{
		Attachment: Attachment{Sandbox: strings.Repeat("0123456789abcdef", 4), IfName: "eth0"},
		Netns:      "/var/run/netns/cni-5e3a4b2c-1f2e-4d3c-9b8a-1234567890ab",
		Namespace:  namespace, Name: name, UID: "7f6a1d1e-8d6c-4b57-9a6e-1f2d3c4b5a69",
		Addrs: []netip.Addr{netip.MustParseAddr("10.128.123.234")},
	}
}

func TestAlias(t *testing.T) {
	long := strings.Repeat("n", 63)
	for name, tc := range map[string]struct {
		pod  Pod
		want func(Pod) Pod // the pod without the fields that do not fit
		text string
	}{
		"all fits": {
			realPod("kube-system", "coredns-7db6d8ff4d-abcde"), func(p Pod) Pod { return p },
			"ovsdn1 kube-system/coredns-7db6d8ff4d-abcde 7f6a1d1e-8d6c-4b57-9a6e-1f2d3c4b5a69 " + strings.Repeat("0123456789abcdef", 4) +
				" eth0 10.128.123.234 /var/run/netns/cni-5e3a4b2c-1f2e-4d3c-9b8a-1234567890ab",
		},
		"the name and the path do not fit": {
			realPod(long, "web-7db6d8ff4d-abcde"), func(p Pod) Pod { p.Netns = ""; return p }, "",
		},
		"the name is the longest that Kubernetes allows": {
			realPod(long, strings.Repeat("a", 253)), func(p Pod) Pod { p.Netns, p.Namespace, p.Name = "", "", ""; return p }, "",
		},
		"a path with a space": {
			func() Pod { p := realPod("default", "web"); p.Netns = "/run/a b"; return p }(), func(p Pod) Pod { p.Netns = ""; return p }, "",
		},
		"no UID": {
			func() Pod { p := realPod("default", "web"); p.UID = ""; return p }(), func(p Pod) Pod { return p }, "",
		},
		"with a macvlan interface": {
			func() Pod { p := realPod("default", "web"); p.Netns, p.Macvlan = "/n", "bond0.100"; return p }(), func(p Pod) Pod { return p },
			"ovsdn1 default/web 7f6a1d1e-8d6c-4b57-9a6e-1f2d3c4b5a69 " + strings.Repeat("0123456789abcdef", 4) + " eth0 10.128.123.234 /n bond0.100",
		},
		"with a macvlan interface, and the name is the longest that Kubernetes allows": {
			func() Pod { p := realPod(long, strings.Repeat("a", 253)); p.Macvlan = "abcdefghijklmno"; return p }(),
			func(p Pod) Pod { p.Netns, p.Namespace, p.Name = "", "", ""; return p }, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			alias := tc.pod.Alias()
			if len(alias) > maxAlias || tc.text != "" && alias != tc.text {
				t.Errorf("alias of %d bytes: %q, want %q", len(alias), alias, tc.text)
			}
			got, err := ParseAlias(tc.pod.HostVeth(), alias)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want(tc.pod), got, equateAddrs()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	endless := realPod("default", "web")
	endless.Sandbox = strings.Repeat("0", maxAlias)
	if alias := endless.Alias(); alias != "" {
		t.Errorf("alias of a sandbox whose id does not fit: got %q, want none", alias)
	}
}

func TestParseAlias_invalid(t *testing.T) {
	p := realPod("default", "web")
	for name, change := range map[string]func(string) string{
		"none":                             func(string) string { return "" },
		"of another version":               func(s string) string { return strings.Replace(s, "ovsdn1", "ovsdn2", 1) },
		"of another device":                func(s string) string { return strings.Replace(s, "eth0", "eth1", 1) },
		"a field too many":                 func(s string) string { return s + " x x" },
		"a field too few":                  func(s string) string { return s[:strings.LastIndexByte(s, ' ')] },
		"an invalid parent of macvlan0":    func(s string) string { return s + " a/b" },
		"an empty parent of macvlan0":      func(s string) string { return s + " -" },
		"an invalid name":                  func(s string) string { return strings.Replace(s, "default/web", "default/..", 1) },
		"an empty namespace":               func(s string) string { return strings.Replace(s, "default/web", "/web", 1) },
		"no slash":                         func(s string) string { return strings.Replace(s, "default/web", "web", 1) },
		"no address":                       func(s string) string { return strings.Replace(s, "10.128.123.234", "-", 1) },
		"an IPv4-mapped address":           func(s string) string { return strings.Replace(s, "10.128.123.234", "::ffff:10.128.123.234", 1) },
		"an address not in canonical form": func(s string) string { return strings.Replace(s, "10.128.123.234", "FD00::1", 1) },
		"bytes outside ASCII":              func(s string) string { return strings.Replace(s, "/var/", "/v\xc3\xa4r/", 1) },
	} {
		if got, err := ParseAlias(p.HostVeth(), change(p.Alias())); err == nil || !strings.Contains(err.Error(), p.HostVeth()) {
			t.Errorf("%s: got pod %+v, error %v; want an error that names %s", name, got, err, p.HostVeth())
		}
	}
}

func FuzzParseAlias(f *testing.F) {
	f.Add(testPod().HostVeth(), testPod().Alias())
	f.Add(realPod("default", "web").HostVeth(), realPod("default", "web").Alias())
	f.Add(testPod().HostVeth(), testPod().Alias()+" eth1")
	f.Add("veth0", "ovsdn1 - - a eth0 10.128.2.2 -")
	f.Fuzz(func(t *testing.T, device, alias string) {
		p, err := ParseAlias(device, alias)
		if err != nil {
			return
		}
		if err := p.validate(); err != nil || p.HostVeth() != device || len(p.Addrs) == 0 || p.OFPort != 0 || (p.Namespace == "") != (p.Name == "") {
			t.Errorf("got invalid pod %+v (%v)", p, err)
		}
		if len(alias) <= maxAlias && p.Alias() != alias {
			t.Errorf("got alias %q, want %q", p.Alias(), alias)
		}
	})
}
