package pods

import (
	"net/netip"
	"os"
	"slices"
	"testing"

	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
)

// Leases that were deleted while pods run are restored, the Node reports it, and no pod gets the address of another one.
func TestRestoreLeases(t *testing.T) {
	for name, stopped := range map[string]bool{"agent running": false, "agent stopped": true} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			a, stop := n.start(t)
			first := n.addPod("a", newNetns(t))
			add(t, a, first)
			want := leaseFiles(t, n)
			if stopped {
				stop()
			}
			if err := os.RemoveAll(n.ipamDir + "/ovsdn"); err != nil {
				t.Fatal(err)
			}
			if stopped {
				a, _ = n.start(t)
			}
			a.restoreLeases(t.Context())
			if got := leaseFiles(t, n); !slices.Equal(got, want) {
				t.Errorf("got leases %v, want %v", got, want)
			}
			a.events.want(t, "node: "+eventreason.AddressLeasesRestored)
			second := n.addPod("b", newNetns(t))
			if result := add(t, a, second); netip.MustParseAddr(result.IPs[0].Address.IP.String()) == a.Pods()[0].Addrs[0] {
				t.Errorf("pod b got the address of pod a: %v", result.IPs)
			}
			del(t, a, first)
			del(t, a, second)
			n.wantClean(t)
		})
	}
}

func leaseFiles(t *testing.T, n *node) (names []string) {
	t.Helper()
	files, err := os.ReadDir(n.ipamDir + "/ovsdn")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if _, err := netip.ParseAddr(f.Name()); err == nil {
			names = append(names, f.Name())
		}
	}
	return names
}
