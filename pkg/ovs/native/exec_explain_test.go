package native

import (
	"errors"
	"testing"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	"github.com/google/go-cmp/cmp"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

func scriptForErrors(t testing.TB) []ovs.Operation {
	t.Helper()
	var tx ovs.Transaction
	tx.Delete(&ovs.Flow{Table: 3, Priority: 6, Protocol: "ip"})
	tx.Add(&ovs.Flow{Table: 3, Priority: 6, Protocol: "ip", Cookie: 5, Actions: []ovs.Action{goovs.Output(9)}})
	tx.Add(&ovs.Flow{Priority: 32768, Actions: []ovs.Action{goovs.Drop()}})
	tx.Add(&ovs.Flow{Priority: 32768, Protocol: "arp", Actions: []ovs.Action{goovs.Drop()}})
	if tx.Err() != nil {
		t.Fatal(tx.Err())
	}
	return tx.Operations()
}

func TestExplain(t *testing.T) {
	ops := scriptForErrors(t)
	flowError := func(i int, reason string) *ovs.FlowError {
		return &ovs.FlowError{Flow: ops[i].Text(), Key: ops[i].Key, Reason: reason}
	}
	const tail = "\nError OFPBFC_MSG_FAILED for: OFPT_BUNDLE_CONTROL (OF1.4) (xid=0xb):\n bundle_id=0 type=COMMIT_REQUEST flags=atomic ordered"
	tests := []struct {
		name   string
		stderr string
		want   *ovs.FlowError
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
		{"log line first", "2026-01-01T00:00:00Z|00001|ofp_match|INFO|normalization\novs-ofctl: -:3: bad", flowError(2, "bad")},
		{"a line that is not there", "ovs-ofctl: -:7: unknown keyword foo", nil},
		{"unknown flow", "Error OFPBAC_BAD_OUT_GROUP for: OFPT_FLOW_MOD (OF1.4) (xid=0x7): ADD table:9 priority=6,ip actions=drop", nil},
		{"error for another request", "Error OFPBFC_MSG_FAILED for: OFPT_BUNDLE_CONTROL (OF1.4) (xid=0xb):", nil},
		{"something else", "ovs-ofctl: talking to unix:/x (End of file)", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			failed := &programError{program: "ovs-ofctl", stderr: tt.stderr, err: errors.New("exit status 1")}
			err := explain(failed, ops)
			var got *ovs.FlowError
			if errors.As(err, &got) != (tt.want != nil) {
				t.Fatalf("got %v, want %v", err, tt.want)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
		})
	}
}
