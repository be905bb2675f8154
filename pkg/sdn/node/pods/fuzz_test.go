package pods

import (
	"testing"

	"github.com/containernetworking/cni/pkg/types"
)

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
