package podinterface

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
)

// code returns the code of a CNI error; 0 without an error, else ErrInternal.
func code(err error) uint {
	var e *types.Error
	switch {
	case err == nil:
		return 0
	case errors.As(err, &e):
		return e.Code
	default:
		return types.ErrInternal
	}
}

// FuzzPrevResult passes any prevResult to CHECK, which must return an error with a code.
func FuzzPrevResult(f *testing.F) {
	f.Add(`{"cniVersion":"1.0.0","name":"ovsdn","prevResult":{"ips":[{"address":"10.128.2.2/23","interface":9}],"interfaces":[null]}}`)
	f.Add(`{"cniVersion":"0.3.1","name":"ovsdn","prevResult":{"ips":[{"version":"4"}],"dns":[]}}`)
	f.Add(`{"cniVersion":"0.1.0","name":"ovsdn","prevResult":{"ip4":{}}}`)
	f.Add(`{"cniVersion":"x","name":"ovsdn","prevResult":{"cniVersion":1}}`)
	f.Add(`{"cniVersion":"1.1.0","name":"ovsdn","prevResult":{"ips":[null],"interfaces":[{"mtu":-1}]}}`)
	o := testOptions()
	pod := sandbox.Pod{
		Attachment: sandbox.Attachment{Sandbox: "0123456789abcdef", IfName: "eth0"}, Namespace: "default", Name: "web",
		Addrs: []netip.Addr{netip.MustParseAddr("10.128.2.2"), netip.MustParseAddr("fd00::2")},
	}
	f.Fuzz(func(t *testing.T, config string) {
		err := o.CheckPrevResult(&cniserver.Request{Config: []byte(config)}, pod)
		switch code(err) {
		case 0, types.ErrDecodingFailure, types.ErrInvalidNetworkConfig:
		default:
			t.Errorf("got code %d: %v", code(err), err)
		}
	})
}
