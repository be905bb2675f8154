package vnids

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

func TestMulticastIsForWhoAsksForIt(t *testing.T) {
	f := start(t, config.ModeMultitenant, withMulticast(netNamespace("a", 0x20)), netNamespace("b", 0x30), netNamespace("c", 0x20))
	f.set("a", 1)
	f.set("b", 2)
	f.wantMulticast() // c has a's VNID and did not ask
	f.update(withMulticast(netNamespace("c", 0x20)))
	f.wantMulticast("0x20 output:1")
	f.set("c", 3)
	f.set("a", 4)
	f.wantMulticast("0x20 output:1,output:3,output:4")
	f.update(withMulticast(netNamespace("c", 0x30))) // joins b, which did not ask
	f.wantMulticast("0x20 output:1,output:4")
	f.update(withMulticast(netNamespace("b", 0x30)))
	f.wantMulticast("0x20 output:1,output:4", "0x30 output:2,output:3")
	f.update(netNamespace("a", 0x20))
	f.wantMulticast("0x30 output:2,output:3")
	f.must(f.Delete(owner(2)))
	f.must(f.Delete(owner(3)))
	f.wantMulticast()
	if err := f.client.NetworkV1().NetNamespaces().Delete(t.Context(), "c", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.eventually(func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if len(f.networks) != 2 {
			return fmt.Errorf("%d networks are known, of 2 VNIDs", len(f.networks))
		}
		return nil
	})
}

// elsewhere is what a test says of other nodes.
type elsewhere struct {
	mu       sync.Mutex
	followed map[config.VNID][]string
	nodes    map[config.VNID][]netip.Addr
}

func (e *elsewhere) Follow(vnid config.VNID, namespaces []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.followed[vnid] = namespaces
}

func (e *elsewhere) Nodes(vnid config.VNID) ([]netip.Addr, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	nodes, known := e.nodes[vnid]
	return nodes, known
}

func TestMulticastGoesToNodesThatHaveThePods(t *testing.T) {
	f := start(t, config.ModeMultitenant, withMulticast(netNamespace("a", 0x20)), withMulticast(netNamespace("b", 0x20)))
	e := &elsewhere{followed: map[config.VNID][]string{}, nodes: map[config.VNID][]netip.Addr{}}
	f.elsewhere = e
	f.set("a", 1)
	if got := e.followed[0x20]; !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("followed are %q", got)
	}
	replicas := func() int {
		n := 0
		for _, text := range f.bridge.Flows() {
			if strings.Contains(text, "table=111,") {
				n += strings.Count(text, "tun_dst")
			}
		}
		return n
	}
	e.nodes[0x20] = []netip.Addr{netip.MustParseAddr("172.31.0.12"), netip.MustParseAddr("172.31.0.13")}
	for _, c := range f.Refresh(0x20) {
		f.must(c)
	}
	if n := replicas(); n != 2 {
		t.Errorf("it goes to %d nodes, want 2", n)
	}
	f.must(f.Delete(owner(1)))
	if got := e.followed[0x20]; len(got) > 0 {
		t.Errorf("without pods here, followed are %q", got)
	}
	if n := replicas(); n != 0 {
		t.Errorf("without pods here, it goes to %d nodes", n)
	}
	if len(f.Refresh(0x20)) > 0 {
		t.Error("without pods here, news of others change the switch")
	}
}

// multicast returns what the switch has in table 120, by VNID.
func (f *fixture) wantMulticast(want ...string) {
	f.t.Helper()
	f.eventually(func() error {
		var got []string
		for _, text := range f.bridge.Flows() {
			if strings.Contains(text, "table=120,") {
				_, reg, _ := strings.Cut(text, "reg0=")
				vnid, _, _ := strings.Cut(reg, ",")
				_, actions, _ := strings.Cut(text, "actions=")
				got = append(got, vnid+" "+actions)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			return fmt.Errorf("multicast is %q, want %q", got, want)
		}
		return nil
	})
}
