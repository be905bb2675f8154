package config

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	networkv1 "github.com/openshift/api/network/v1"
)

// egressPolicy returns a policy of rules such as "Allow 192.0.2.0/24" or "Deny example.com".
func egressPolicy(name string, rules ...string) *networkv1.EgressNetworkPolicy {
	o := &networkv1.EgressNetworkPolicy{}
	o.Name = name
	for _, r := range rules {
		action, to, _ := strings.Cut(r, " ")
		rule := networkv1.EgressNetworkPolicyRule{Type: networkv1.EgressNetworkPolicyRuleType(action)}
		if strings.Contains(to, "/") {
			rule.To.CIDRSelector = to
		} else {
			rule.To.DNSName = to
		}
		o.Spec.Egress = append(o.Spec.Egress, rule)
	}
	return o
}

func TestParseEgressNetworkPolicy(t *testing.T) {
	for name, tc := range map[string]struct {
		rule string
		want EgressRule
		err  string // a part of the error; "": none
	}{
		"range":              {"Allow 192.0.2.0/24", EgressRule{To: netip.MustParsePrefix("192.0.2.0/24")}, ""},
		"host bits":          {"Deny 192.0.2.7/24", EgressRule{To: netip.MustParsePrefix("192.0.2.0/24"), Deny: true}, ""},
		"everything":         {"Deny 0.0.0.0/0", EgressRule{To: netip.MustParsePrefix("0.0.0.0/0"), Deny: true}, ""},
		"everything, as was": {"Deny 0.0.0.0/32", EgressRule{To: netip.MustParsePrefix("0.0.0.0/0"), Deny: true}, ""},
		"name":               {"Allow www.example.com", EgressRule{Name: "www.example.com"}, ""},
		"trailing dot":       {"Allow WWW.Example.com.", EgressRule{Name: "www.example.com"}, ""},
		"wildcard":           {"Allow *.example.com", EgressRule{}, "wildcard"},
		"address as name":    {"Allow 192.0.2.7", EgressRule{}, "cidrSelector: 192.0.2.7/32"},
		"long label":         {"Allow " + strings.Repeat("a", 64) + ".example.com", EgressRule{}, "no name"},
		"long name":          {"Allow " + strings.Repeat("a.", 130) + "com", EgressRule{}, "no name"},
		"two dots":           {"Allow example.com..", EgressRule{}, "no name"},
		"only a dot":         {"Allow .", EgressRule{}, "no name"},
		"IPv6":               {"Allow 2001:db8::/32", EgressRule{}, "not IPv4"},
		"leading zero":       {"Allow 010.0.0.0/8", EgressRule{}, "no range"},
		"no length":          {"Allow 192.0.2.0/", EgressRule{}, "no range"},
		"nothing":            {"Allow ", EgressRule{}, "is empty"},
		"type":               {"AllowAll 192.0.2.0/24", EgressRule{}, "write Allow or Deny"},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := ParseEgressNetworkPolicy(egressPolicy("default", tc.rule))
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("got error %v, want one with %q", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]EgressRule{tc.want}, p.Rules, cmpopts.EquateComparable(netip.Prefix{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if got, want := len(p.Everywhere) > 0, strings.HasSuffix(tc.rule, "0.0.0.0/32"); got != want {
				t.Errorf("reported as 0.0.0.0/32: got %t, want %t", got, want)
			}
		})
	}
}

func TestMergeEgressNetworkPolicies(t *testing.T) {
	rules, err := MergeEgressNetworkPolicies([]*networkv1.EgressNetworkPolicy{egressPolicy("b", "Deny 0.0.0.0/0"), egressPolicy("a", "Allow 192.0.2.0/24")})
	if err != nil || len(rules) != 2 || rules[0].Deny || !rules[1].Deny {
		t.Errorf("got %v, %v, want the rules of a before those of b", rules, err)
	}
	if _, err = MergeEgressNetworkPolicies([]*networkv1.EgressNetworkPolicy{egressPolicy("a", "Allow 192.0.2.0/24"), egressPolicy("b", "Allow *")}); err == nil {
		t.Error("got no error, want the fault of b")
	}
	var many, names []string
	for i := range MaxEgressRules + 1 {
		many = append(many, "Allow 192.0.2.0/24")
		names = append(names, "Allow n"+strconv.Itoa(i)+".example.com")
	}
	for what, objects := range map[string][]*networkv1.EgressNetworkPolicy{
		"rules":           {egressPolicy("a", many...)},
		"rules of all":    {egressPolicy("a", many[:MaxEgressRules]...), egressPolicy("b", many[:1]...)},
		"names":           {egressPolicy("a", names[:MaxEgressNames+1]...)},
		"names of all":    {egressPolicy("a", names[:MaxEgressNames]...), egressPolicy("b", names[MaxEgressNames])},
		"rules of a huge": {egressPolicy("a", slices.Repeat([]string{"x"}, 100_000)...)},
	} {
		if _, err := MergeEgressNetworkPolicies(objects); err == nil {
			t.Errorf("%s: got no error, want one about the budget", what)
		}
	}
	if _, err := MergeEgressNetworkPolicies([]*networkv1.EgressNetworkPolicy{egressPolicy("a", many[:MaxEgressRules]...)}); err != nil {
		t.Errorf("got %v, want as many rules as the budget has", err)
	}
}

func TestCompactEgressNetworkPolicy(t *testing.T) {
	huge := egressPolicy("a", slices.Repeat([]string{"Allow " + strings.Repeat("a", 10_000) + ".example.com"}, 3000)...)
	huge.Annotations = map[string]string{"a": "b"}
	got := CompactEgressNetworkPolicy(huge)
	if len(got.Spec.Egress) != MaxEgressRules+1 || len(got.Spec.Egress[0].To.DNSName) > maxEgressPeer || got.Annotations != nil || len(huge.Spec.Egress) != 3000 {
		t.Errorf("got %d rules with names of %d bytes and annotations %v", len(got.Spec.Egress), len(got.Spec.Egress[0].To.DNSName), got.Annotations)
	}
	if _, err := ParseEgressNetworkPolicy(got); err == nil {
		t.Error("got no error, want those of the original")
	}
	tooMany := egressPolicy("a", slices.Repeat([]string{"Allow 192.0.2.0/24"}, 3000)...)
	_, original := ParseEgressNetworkPolicy(tooMany)
	if _, err := ParseEgressNetworkPolicy(CompactEgressNetworkPolicy(tooMany)); err == nil || err.Error() != original.Error() {
		t.Errorf("got error %v, want that of the original, %v", err, original)
	}
	valid := egressPolicy("a", "Deny 0.0.0.0/32")
	if diff := cmp.Diff(valid, CompactEgressNetworkPolicy(valid)); diff != "" {
		t.Errorf("a valid policy (-want +got):\n%s", diff)
	}
}

func FuzzParseEgressNetworkPolicy(f *testing.F) {
	for _, s := range []string{"192.0.2.0/24", "0.0.0.0/32", "::ffff:1.2.3.4/120", "www.example.com.", "*.example.com", "-a.example.com", "1.2.3.4"} {
		f.Add(s, s, "Allow")
	}
	f.Fuzz(func(t *testing.T, cidr, name, action string) {
		o := egressPolicy("fuzz")
		for _, peer := range []networkv1.EgressNetworkPolicyPeer{{CIDRSelector: cidr}, {DNSName: name}, {CIDRSelector: cidr, DNSName: name}} {
			o.Spec.Egress = []networkv1.EgressNetworkPolicyRule{{Type: networkv1.EgressNetworkPolicyRuleType(action), To: peer}}
			p, err := ParseEgressNetworkPolicy(o)
			if err != nil {
				continue
			}
			r := p.Rules[0]
			if (r.Name == "") == !r.To.IsValid() || r.Name == "" && r.To != r.To.Masked() || r.Name != "" && r.Name != strings.ToLower(strings.TrimSuffix(name, ".")) {
				t.Errorf("got %v of %q, %q", r, cidr, name)
			}
		}
	})
}
