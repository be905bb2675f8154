package ovs_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// The message for a flow of 4,000 conjunctions is short; FlowError.Flow contains the whole text.
func TestFlowError_longFlow(t *testing.T) {
	short := "table=81,priority=26026,ip,reg2=0xf actions=conjunction(1,1/3)"
	long := short + strings.Repeat(",conjunction(2669258675,1/3)", 4000)
	for _, tc := range []struct {
		err  error
		want string
	}{
		{&ovs.FlowError{Flow: short, Reason: "OFPBRC_BAD_LEN"}, "Open vSwitch rejected flow " + short + ": OFPBRC_BAD_LEN"},
		{&ovs.FlowError{Flow: long, Reason: "OFPBRC_BAD_LEN"}, "Open vSwitch rejected flow " + long[:500] + "… (112062 bytes in all): OFPBRC_BAD_LEN"},
		{&ovs.GroupError{Group: long, Reason: "OFPBRC_BAD_LEN"}, "Open vSwitch rejected group " + long[:500] + "… (112062 bytes in all): OFPBRC_BAD_LEN"},
	} {
		if got := tc.err.Error(); got != tc.want {
			t.Errorf("got %s\nwant %s", got, tc.want)
		}
	}
	var rejected *ovs.FlowError
	if err := error(&ovs.FlowError{Flow: long}); !errors.As(err, &rejected) || rejected.Flow != long {
		t.Error("got a shortened FlowError.Flow, want the whole text")
	}
}
