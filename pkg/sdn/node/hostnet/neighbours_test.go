package hostnet

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/sysctl"
)

// A pod that tries all addresses of the service network has the host resolve none: the machine's neighbour table is one for the host and
// all pods. Services that exist are translated before.
func TestPodsDoNotFillTheNeighbourTable(t *testing.T) {
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
		t.Errorf("the host resolves %d addresses of no service, want 0", got)
	}
	if got := strings.Fields(sh(t, `iptables -nvxL OVSDN-FORWARD | awk '$3 == "DROP" { print $1 }'`)); len(got) != 1 || got[0] != fmt.Sprint(addresses) {
		t.Errorf("counted %v dropped packets, want %d", got, addresses)
	}
}

// The thresholds are raised, never lowered, and what they were is restored.
func TestNeighbourSettings(t *testing.T) {
	dir := t.TempDir()
	s := Sysctls{Dir: sysctl.Dir(dir), Former: filepath.Join(t.TempDir(), "former")}
	ensure := func() (changes []string) {
		for _, w := range neighbourSettings() {
			change, err := s.ensureIfThere(w)
			must(t, err)
			if change != "" {
				changes = append(changes, change)
			}
		}
		return changes
	}
	if changes := ensure(); changes != nil { // as in a network namespace that is not the machine's own
		t.Errorf("changed %q", changes)
	}
	const neigh = "net/ipv4/neigh/default/gc_thresh"
	must(t, os.MkdirAll(filepath.Join(dir, filepath.Dir(neigh)), 0o755))
	before := map[string]string{"1": "128", "2": "40000", "3": "1024"}
	for i, value := range before {
		must(t, os.WriteFile(filepath.Join(dir, neigh+i), []byte(value+"\n"), 0o600))
	}
	want := []string{"sysctl " + neigh + "3=65536 (was 1024)", "sysctl " + neigh + "1=8192 (was 128)"}
	if diff := cmp.Diff(want, ensure()); diff != "" {
		t.Errorf("changes differ (-want +got):\n%s", diff)
	}
	if changes := ensure(); changes != nil {
		t.Errorf("changed %q again", changes)
	}
	_, err := s.Restore()
	must(t, err)
	for i, want := range before {
		if got, err := s.Dir.Get(neigh + i); err != nil || got != want {
			t.Errorf("%s%s: got %s, %v, want %s", neigh, i, got, err, want)
		}
	}
	if _, err := os.Stat(s.Former); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the notes are left: %v", err)
	}
}
