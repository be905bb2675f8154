package pods

import (
	"net/netip"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
)

// FuzzPrevResult passes any prevResult to CHECK, which must return an error with a code.
func FuzzPrevResult(f *testing.F) {
	f.Add(`{"cniVersion":"1.0.0","name":"ovsdn","prevResult":{"ips":[{"address":"10.128.2.2/23","interface":9}],"interfaces":[null]}}`)
	f.Add(`{"cniVersion":"0.3.1","name":"ovsdn","prevResult":{"ips":[{"version":"4"}],"dns":[]}}`)
	f.Add(`{"cniVersion":"0.1.0","name":"ovsdn","prevResult":{"ip4":{}}}`)
	f.Add(`{"cniVersion":"x","name":"ovsdn","prevResult":{"cniVersion":1}}`)
	f.Add(`{"cniVersion":"1.1.0","name":"ovsdn","prevResult":{"ips":[null],"interfaces":[{"mtu":-1}]}}`)
	m := &Manager{Options: options()}
	pod := sandbox.Pod{
		Attachment: sandbox.Attachment{Sandbox: "0123456789abcdef", IfName: "eth0"}, Namespace: "default", Name: "web",
		Addrs: []netip.Addr{netip.MustParseAddr("10.128.2.2"), netip.MustParseAddr("fd00::2")},
	}
	f.Fuzz(func(t *testing.T, config string) {
		err := m.checkPrevResult(&cniserver.Request{Config: []byte(config)}, pod)
		switch code(err) {
		case 0, types.ErrDecodingFailure, types.ErrInvalidNetworkConfig:
		default:
			t.Errorf("got code %d: %v", code(err), err)
		}
	})
}

// FuzzValidAttachments passes any list of valid attachments: an invalid list is an error, and never an empty list.
func FuzzValidAttachments(f *testing.F) {
	f.Add(`{"name":"ovsdn","cni.dev/valid-attachments":[{"containerID":"a","ifname":"eth0"}]}`)
	f.Add(`{"name":"ovsdn","cni.dev/valid-attachments":null}`)
	f.Add(`{"name":"ovsdn","CNI.DEV/VALID-ATTACHMENTS":[]}`)
	f.Fuzz(func(t *testing.T, config string) {
		valid, err := validAttachments([]byte(config))
		if (valid == nil) == (err == nil) {
			t.Errorf("got list %t, error %v; want one of them", valid != nil, err)
		}
		if c := code(err); err != nil && c != types.ErrDecodingFailure && c != types.ErrInvalidNetworkConfig {
			t.Errorf("got code %d: %v", c, err)
		}
	})
}
