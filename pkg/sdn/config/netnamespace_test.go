package config

import (
	"strings"
	"testing"
	"unicode/utf8"

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
		{"reserved", object("red", 9, nil), nil, []string{"netid: 9 is not a VNID: write 0 (global), or a number from 10 to 16777215"}},
		{"too large", object("red", 1<<24, nil), nil, []string{"netid: 16777216 is not a VNID"}},
		{"two faults", object("blue", 1, nil), nil, []string{`netname: is "blue", but must be the object's name: write "red"`, "netid: 1 is not a VNID"}},
		{"invalid record", object("red", 5, assigned("9")), nil, []string{
			"netid: 5 is not a VNID", "annotation ovsdn.io/assigned-netid: 9 is not a VNID"}},
		{"record is no number", object("red", 5, assigned("0x20")), nil, []string{`annotation ovsdn.io/assigned-netid: "0x20" is not a VNID`}},
		{"valid netid beside an invalid record", object("red", 11, assigned("9")), &NetNamespace{Name: "red", VNID: 11}, nil},
		{"valid netid beside another record", object("red", 11, assigned("12")), &NetNamespace{Name: "red", VNID: 11}, nil},
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

func assigned(vnid string) map[string]string {
	return map[string]string{"ovsdn.io/assigned-netid": vnid}
}

// With an invalid field, the VNID that the controller has recorded stays in use, and the fault is reported beside it.
func TestParseNetNamespace_invalidFieldRetainsAssignedVNID(t *testing.T) {
	for name, tc := range map[string]struct {
		netname  string
		netid    uint32
		assigned string
		want     VNID
		fault    string
	}{
		"reserved":       {"red", 5, "4242", 4242, "netid: 5 is not a VNID"},
		"too large":      {"red", 1 << 24, "4242", 4242, "netid: 16777216 is not a VNID"},
		"largest number": {"red", 1<<32 - 1, "10", 10, "netid: 4294967295 is not a VNID"},
		"was global":     {"red", 1, "0", 0, "netid: 1 is not a VNID"},
		"other name":     {"blue", 77, "4242", 4242, `netname: is "blue"`},
	} {
		t.Run(name, func(t *testing.T) {
			n, err := ParseNetNamespace(&networkv1.NetNamespace{
				ObjectMeta: metav1.ObjectMeta{Name: "red", Annotations: assigned(tc.assigned)}, NetName: tc.netname, NetID: tc.netid,
			})
			if err != nil {
				t.Fatalf("got error %v, want VNID %s", err, tc.want)
			}
			if n.VNID != tc.want || n.Name != "red" {
				t.Errorf("got VNID %s of %s, want %s of red", n.VNID, n.Name, tc.want)
			}
			wantError(t, n.Fault, []string{tc.fault})
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
			t.Errorf("error %q does not contain %q", err, part)
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
		"":              `"" is not a change of a network: write join:NAMESPACE, isolate or global`,
		":":             `is not a change of a network`,
		"join":          `"join" names no namespace: write join:NAMESPACE`,
		"join:":         `names no namespace`,
		"join:a:b":      `names no namespace`,
		"join:Red":      `names no namespace`,
		"join: red":     `names no namespace`,
		"JOIN:red":      `is not a change of a network`,
		"isolate:red":   `is not a change of a network`,
		"global:red":    `is not a change of a network`,
		"isolate\n":     `is not a change of a network`,
		"leave:red":     `is not a change of a network`,
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
	if c, requested, err := RequestedChange(o); requested || err != nil || c != (Change{}) {
		t.Errorf("no request: got %v, %v, %v", c, requested, err)
	}
	o.Annotations = map[string]string{"pod.network.openshift.io/multitenant.change-network": "join:red"}
	if c, requested, err := RequestedChange(o); !requested || err != nil || c != (Change{ActionJoin, "red"}) {
		t.Errorf("join: got %v, %v, %v", c, requested, err)
	}
	o.Annotations = map[string]string{"pod.network.openshift.io/multitenant.change-network": "nonsense"}
	if _, requested, err := RequestedChange(o); !requested || err == nil {
		t.Errorf("nonsense: got %v, %v", requested, err)
	}
}

// A refused request does not count. The same request written again is a new request.
func TestRequestedChange_refused(t *testing.T) {
	for _, request := range []string{"join:red", "isolate", "global:", "", "nonsense", "refused", "Refused:isolate", strings.Repeat("é", 1<<17)} {
		o := &networkv1.NetNamespace{}
		o.Annotations = map[string]string{networkv1.ChangePodNetworkAnnotation: request}
		if _, requested, _ := RequestedChange(o); !requested {
			t.Errorf("%.20q: got no request, want one", request)
		}
		value := RefusedChange(request)
		if !strings.HasPrefix(value, "refused:") || !utf8.ValidString(value) || len(value) > 200 {
			t.Errorf("%.20q: got refusal %.20q of %d bytes, want valid UTF-8 with the prefix refused: and at most 200 bytes", request, value, len(value))
		}
		o.Annotations[networkv1.ChangePodNetworkAnnotation] = value
		if c, requested, err := RequestedChange(o); requested || err != nil || c != (Change{}) {
			t.Errorf("%.20q, refused: got request %v, %v, %v, want none", request, c, requested, err)
		}
	}
	if got := RefusedChange("join:red"); got != "refused:join:red" {
		t.Errorf("got %q, want refused:join:red", got)
	}
	if _, err := ParseChange(strings.Repeat("\x00", 1<<18)); err == nil || len(err.Error()) > 1000 {
		t.Errorf("a long request is refused in %d bytes", len(err.Error()))
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
