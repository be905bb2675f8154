package hostnet

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/sysctl"
)

// When a pod scans the service network, the host resolves none of the addresses: the host and all pods share the neighbour table. Addresses
// of existing services are translated before.
func TestNeighbourTable_scanOfServiceNetwork(t *testing.T) {
	const addresses = 300
	c := openShift()
	c.ServiceNetwork, c.MasqueradeServices = node1().ServiceNetwork, true
	n := newNetwork(t, c)
	sh(t, "iptables -t nat -A PREROUTING -d 172.30.0.10 -p udp --dport 53 -j DNAT --to-destination 10.128.0.3:5353")
	pod, endpoint := udp(t, n.pods, "10.128.0.2:5000"), udp(t, n.pods, "10.128.0.3:5353")
	for i := range addresses {
		send(t, pod, fmt.Sprintf("172.30.%d.%d:53", 1+i/250, 1+i%250))
	}
	send(t, pod, "172.30.0.10:53")
	sender(t, endpoint)
	if got := strings.Count(sh(t, "ip neigh show dev tun0 nud all"), "172.30."); got != 0 {
		t.Errorf("got %d neighbours for addresses without a service, want 0", got)
	}
	if got := strings.Fields(sh(t, `iptables -nvxL OVSDN-FORWARD | awk '$3 == "REJECT" || $3 == "DROP" { print $3, $1 }'`)); !slices.Equal(got, []string{"REJECT", fmt.Sprint(addresses), "DROP", "0"}) {
		t.Errorf("got packets by target %v, want %d rejected and none dropped", got, addresses)
	}
}

// The thresholds are raised, never lowered, and Restore restores the previous ones.
func TestNeighbourSettings(t *testing.T) {
	dir := t.TempDir()
	s := Sysctls{Dir: sysctl.Dir(dir), SavedFile: filepath.Join(t.TempDir(), "sysctls")}
	ensure := func() (changes []string) {
		for _, w := range neighbourSettings() {
			change, err := s.ensure(w, "")
			must(t, err)
			if change != "" {
				changes = append(changes, change)
			}
		}
		return changes
	}
	if changes := ensure(); changes != nil { // as in a network namespace other than the initial one
		t.Errorf("ensure without the sysctls: got changes %q", changes)
	}
	const neigh = "net/ipv4/neigh/default/gc_thresh"
	must(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(neigh)), 0o755))
	before := map[string]string{"1": "128", "2": "40000", "3": "1024"}
	for i, value := range before {
		must(t, os.WriteFile(filepath.Join(dir, neigh+i), []byte(value+"\n"), 0o600))
	}
	want := []string{"sysctl " + neigh + "3=65536 (was 1024)", "sysctl " + neigh + "1=8192 (was 128)"}
	if diff := cmp.Diff(want, ensure()); diff != "" {
		t.Errorf("changes (-want +got):\n%s", diff)
	}
	if changes := ensure(); changes != nil {
		t.Errorf("second ensure: got changes %q", changes)
	}
	_, err := s.Restore()
	must(t, err)
	for i, want := range before {
		if got, err := s.Dir.Get(neigh + i); err != nil || got != want {
			t.Errorf("%s%s: got %s, %v, want %s", neigh, i, got, err, want)
		}
	}
	if _, err := os.Stat(s.SavedFile); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("file of previous values: got %v, want it deleted", err)
	}
}

// neighbourSettings returns the settings of the neighbour table of all interfaces.
func neighbourSettings() []sysctl.Setting {
	return slices.DeleteFunc(sysctl.Table(), func(s sysctl.Setting) bool { return !strings.Contains(s.Key, "/neigh/default/") })
}
