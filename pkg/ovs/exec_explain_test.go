package ovs

import (
	"errors"
	"testing"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	"github.com/google/go-cmp/cmp"
)

func scriptForErrors(t testing.TB) []operation {
	t.Helper()
	var tx Transaction
	tx.Delete(&Flow{Table: 3, Priority: 6, Protocol: "ip"})
	tx.Add(&Flow{Table: 3, Priority: 6, Protocol: "ip", Cookie: 5, Actions: []Action{goovs.Output(9)}})
	tx.Add(&Flow{Priority: 32768, Actions: []Action{goovs.Drop()}})
	tx.Add(&Flow{Priority: 32768, Protocol: "arp", Actions: []Action{goovs.Drop()}})
	if tx.err != nil {
		t.Fatal(tx.err)
	}
	return tx.ops
}

func TestExplain(t *testing.T) {
	ops := scriptForErrors(t)
	flowError := func(i int, reason string) *FlowError {
		return &FlowError{Flow: ops[i].text, Key: ops[i].key, Reason: reason}
	}
	const tail = "\nError OFPBFC_MSG_FAILED for: OFPT_BUNDLE_CONTROL (OF1.4) (xid=0xb):\n bundle_id=0 type=COMMIT_REQUEST flags=atomic ordered"
	tests := []struct {
		name   string
		stderr string
		want   *FlowError
	}{
		{
			"from the switch",
			"Error OFPBAC_BAD_OUT_GROUP for: OFPT_FLOW_MOD (OF1.4) (xid=0x7): ADD table:3 priority=6,ip cookie:0x5 actions=output:9" + tail,
			flowError(1, "OFPBAC_BAD_OUT_GROUP"),
		},
		{
			"defaults are not printed",
			"Error OFPBMC_BAD_FIELD for: OFPT_FLOW_MOD (OF1.4) (xid=0x7): ADD actions=drop" + tail,
			flowError(2, "OFPBMC_BAD_FIELD"),
		},
		{
			"default priority with a match",
			"Error OFPBMC_BAD_FIELD for: OFPT_FLOW_MOD (OF1.4) (xid=0x7): ADD arp idle:5 actions=drop" + tail,
			flowError(3, "OFPBMC_BAD_FIELD"),
		},
		{"from the parser", "ovs-ofctl: -:3: unknown keyword foo", flowError(2, "unknown keyword foo")},
		{"a log line first", "2026-01-01T00:00:00Z|00001|ofp_match|INFO|normalization\novs-ofctl: -:3: bad", flowError(2, "bad")},
		{"a line that is not there", "ovs-ofctl: -:7: unknown keyword foo", nil},
		{"a flow that is not ours", "Error OFPBAC_BAD_OUT_GROUP for: OFPT_FLOW_MOD (OF1.4) (xid=0x7): ADD table:9 priority=6,ip actions=drop", nil},
		{"another request", "Error OFPBFC_MSG_FAILED for: OFPT_BUNDLE_CONTROL (OF1.4) (xid=0xb):", nil},
		{"something else", "ovs-ofctl: talking to unix:/x (End of file)", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			failed := &programError{program: "ovs-ofctl", stderr: tt.stderr, err: errors.New("exit status 1")}
			err := explain(failed, ops)
			var got *FlowError
			if errors.As(err, &got) != (tt.want != nil) {
				t.Fatalf("got %v, want %v", err, tt.want)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
