package ovs_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// A flow of 4,000 conjunctions is refused in a line that a person can read; the error itself has all of it.
func TestRefusedFlowIsReadable(t *testing.T) {
	short := "table=81,priority=26026,ip,reg2=0xf actions=conjunction(1,1/3)"
	long := short + strings.Repeat(",conjunction(2669258675,1/3)", 4000)
	for _, tc := range []struct {
		err  error
		want string
	}{
		{&ovs.FlowError{Flow: short, Reason: "OFPBRC_BAD_LEN"}, "Open vSwitch refused the flow " + short + ": OFPBRC_BAD_LEN"},
		{&ovs.FlowError{Flow: long, Reason: "OFPBRC_BAD_LEN"}, "Open vSwitch refused the flow " + long[:500] + "… (112062 bytes in all): OFPBRC_BAD_LEN"},
		{&ovs.GroupError{Group: long, Reason: "OFPBRC_BAD_LEN"}, "Open vSwitch refused the group " + long[:500] + "… (112062 bytes in all): OFPBRC_BAD_LEN"},
	} {
		if got := tc.err.Error(); got != tc.want {
			t.Errorf("got %s\nwant %s", got, tc.want)
		}
	}
	var refused *ovs.FlowError
	if err := error(&ovs.FlowError{Flow: long}); !errors.As(err, &refused) || refused.Flow != long {
		t.Error("the error has not the whole flow")
	}
}
