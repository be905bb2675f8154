package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	networkv1 "github.com/openshift/api/network/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestParseNetNamespace(t *testing.T) {
	object := func(netname string, netid uint32, annotations map[string]string) *networkv1.NetNamespace {
		return &networkv1.NetNamespace{
			ObjectMeta: metav1.ObjectMeta{Name: "red", Annotations: annotations}, NetName: netname, NetID: netid,
		}
	}
	for _, tc := range []struct {
		name   string
		object *networkv1.NetNamespace
		want   *NetNamespace
		errs   []string
	}{
		{"a tenant", object("red", 10, nil), &NetNamespace{Name: "red", VNID: 10}, nil},
		{"global", object("red", 0, nil), &NetNamespace{Name: "red"}, nil},
		{"the last VNID", object("red", 16777215, nil), &NetNamespace{Name: "red", VNID: 16777215}, nil},
		{"with annotations", object("red", 11, map[string]string{
			"netnamespace.network.openshift.io/multicast-enabled": "true", "ovsdn.io/namespace-uid": "u1",
		}), &NetNamespace{Name: "red", VNID: 11, Multicast: true, NamespaceUID: "u1"}, nil},
		{"multicast that is not true", object("red", 11, map[string]string{
			"netnamespace.network.openshift.io/multicast-enabled": "yes",
		}), &NetNamespace{Name: "red", VNID: 11}, nil},
		{"reserved", object("red", 9, nil), nil, []string{"netid: 9 is no VNID: write 0 (global), or a number from 10 to 16777215"}},
		{"too large", object("red", 1<<24, nil), nil, []string{"netid: 16777216 is no VNID"}},
		{"two faults", object("blue", 1, nil), nil, []string{`netname: is "blue", but must be the object's name: write "red"`, "netid: 1 is no VNID"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := ParseNetNamespace(tc.object)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
			wantError(t, err, tc.errs)
		})
	}
}

func wantError(t *testing.T, err error, parts []string) {
	t.Helper()
	if (err != nil) != (len(parts) > 0) {
		t.Fatalf("error %v", err)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %q", err, part)
		}
	}
}

func TestParseChange(t *testing.T) {
	for in, want := range map[string]Change{
		"join:red": {ActionJoin, "red"},
		"isolate":  {ActionIsolate, ""},
		"isolate:": {ActionIsolate, ""},
		"global":   {ActionGlobal, ""},
		"global:":  {ActionGlobal, ""},
	} {
		got, err := ParseChange(in)
		if err != nil || got != want {
			t.Errorf("%q: %+v, %v", in, got, err)
		}
		if s := want.String(); s != strings.TrimSuffix(in, ":") {
			t.Errorf("%q is written as %q", in, s)
		}
	}
	for in, want := range map[string]string{
		"":              `"" is no change of a network: write join:NAMESPACE, isolate or global`,
		":":             `is no change of a network`,
		"join":          `"join" names no namespace: write join:NAMESPACE`,
		"join:":         `names no namespace`,
		"join:a:b":      `names no namespace`,
		"join:Red":      `names no namespace`,
		"join: red":     `names no namespace`,
		"JOIN:red":      `is no change of a network`,
		"isolate:red":   `is no change of a network`,
		"global:red":    `is no change of a network`,
		"isolate\n":     `is no change of a network`,
		"leave:red":     `is no change of a network`,
		"join:../red":   `names no namespace`,
		"join:\x00\xff": `names no namespace`,
	} {
		_, err := ParseChange(in)
		if err == nil {
			t.Errorf("%q is taken", in)
			continue
		}
		wantError(t, err, []string{want})
	}
}

func TestRequestedChange(t *testing.T) {
	o := &networkv1.NetNamespace{}
	if c, asked, err := RequestedChange(o); asked || err != nil || c != (Change{}) {
		t.Errorf("nothing asked for: %v, %v, %v", c, asked, err)
	}
	o.Annotations = map[string]string{"pod.network.openshift.io/multitenant.change-network": "join:red"}
	if c, asked, err := RequestedChange(o); !asked || err != nil || c != (Change{ActionJoin, "red"}) {
		t.Errorf("join: %v, %v, %v", c, asked, err)
	}
	o.Annotations = map[string]string{"pod.network.openshift.io/multitenant.change-network": "nonsense"}
	if _, asked, err := RequestedChange(o); !asked || err == nil {
		t.Errorf("nonsense: %v, %v", asked, err)
	}
}

func TestFixedVNID(t *testing.T) {
	object := func(value string) *networkv1.HostSubnet {
		return &networkv1.HostSubnet{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"pod.network.openshift.io/fixed-vnid-host": value}}}
	}
	if _, fixed, err := FixedVNID(&networkv1.HostSubnet{}); fixed || err != nil {
		t.Errorf("none: %v, %v", fixed, err)
	}
	for in, want := range map[string]VNID{"0": 0, "10": 10, "16777215": 16777215} {
		if got, fixed, err := FixedVNID(object(in)); !fixed || err != nil || got != want {
			t.Errorf("%s: %v, %v, %v", in, got, fixed, err)
		}
	}
	for _, in := range []string{"", "-1", "9", "16777216", "4294967296", "0x10", "ten", " 10"} {
		if _, fixed, err := FixedVNID(object(in)); !fixed || err == nil {
			t.Errorf("%q is taken", in)
		}
	}
}

// What is taken is a change that means the same when it is written and read again.
func FuzzParseChange(f *testing.F) {
	for _, s := range []string{"join:red", "isolate", "isolate:", "global", "join:", "join:a:b", "", ":", "\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		c, err := ParseChange(s)
		if err != nil {
			return
		}
		if again, err := ParseChange(c.String()); err != nil || again != c {
			t.Errorf("%q is %+v, which written is %+v, %v", s, c, again, err)
		}
		if (c.Action == ActionJoin) != (c.To != "") {
			t.Errorf("%q is %+v", s, c)
		}
	})
}

// What is taken is a VNID that means the same when it is written and read again.
func FuzzParseVNID(f *testing.F) {
	for _, s := range []string{"0", "9", "10", "16777215", "16777216", "-1", "", "010"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		v, err := ParseVNID(s)
		if err != nil {
			return
		}
		if !v.IsGlobal() && (v < MinVNID || v > MaxVNID) {
			t.Errorf("%q is %d", s, v)
		}
		if again, err := ParseVNID(v.String()); err != nil || again != v {
			t.Errorf("%q is %d, which written is %d, %v", s, v, again, err)
		}
	})
}
