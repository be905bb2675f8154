package e2e

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/egressip"
	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/lab"
)

// TestEgressIPs has a lab of three nodes. With egressLabVariable it uses an existing lab and does not remove it.
const (
	egressLabVariable = "OVSDN_E2E_EGRESS_LAB"
	egressLab         = "e2e-egress"
)

// The source addresses that hosts outside and nodes see, in both modes, while what determines them changes. The lab starts the product's programs itself: a leading
// controller on a node that dies would not move egress IPs before its lease is over.
func TestEgressIPs(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: TestCapabilities sees an egress IP")
	}
	var c *cluster
	if name := os.Getenv(egressLabVariable); name != "" {
		c = openCluster(t, name)
	} else {
		c = ownCluster(t, egressLab, lab.Shape{Nodes: 3, Mode: lab.Multitenant, ServiceProxy: lab.External, Install: lab.Processes})
	}
	began := time.Now()
	w := newEgressWorld(t, c)
	for _, mode := range []config.Mode{config.ModeMultitenant, config.ModeNetworkPolicy} {
		t.Run(mode.String(), func(t *testing.T) {
			c.haveMode(t, mode)
			w.mode = mode
			w.assign(t)
			for _, test := range []struct {
				name string
				run  func(*testing.T, *egressWorld)
			}{
				{"moved", testEgressIPMoved},
				{"egress firewalls", testEgressIPFirewalls},
				{"policies", testEgressIPPolicies},
				{"agents restart", testEgressIPAgents},
				{"vswitchd restarts", testEgressIPSwitches},
				{"exceptions from masquerading", testEgressIPMasquerade},
				{"clients outside", testEgressIPClients},
				{"conflicts", testEgressIPConflicts},
				{"many moves", testEgressIPMoves},
			} {
				t.Run(test.name, func(t *testing.T) {
					w.agrees(t)
					test.run(t, w)
					w.assign(t)
				})
			}
		})
	}
	c.Warned(t, began, "NetNamespace", w.unhosted.namespace, egressIP(3).String())
	t.Run("assignment", func(t *testing.T) { testEgressIPAssignment(t, w) })
	t.Run("node of manual IPs dies", func(t *testing.T) { testEgressIPManualFailover(t, w) })
	// The last: it restarts a node, whose pods then have other sandboxes.
	t.Run("node dies", func(t *testing.T) { testEgressIPFailover(t, w) })
}

// egressSpace is a namespace with a pod on each node.
type egressSpace struct {
	namespace string
	ips       []netip.Addr
	pods      []pod // by node
}

// egressWorld is namespaces with different egress IPs: one, several, none, and one that no node hosts.
type egressWorld struct {
	*cluster
	one, several, none, unhosted *egressSpace

	hosted map[string][]netip.Addr // by node
	nodes  []string
	mode   config.Mode
	places []*sourceRecorder // the hosts outside and the nodes
	rounds atomic.Uint64
}

func newEgressWorld(t *testing.T, c *cluster) *egressWorld {
	t.Helper()
	w := &egressWorld{
		cluster: c, nodes: []string{fixture.Node1, fixture.Node2, fixture.Node3},
		one: &egressSpace{}, several: &egressSpace{}, none: &egressSpace{}, unhosted: &egressSpace{},
	}
	for _, s := range w.spaces() {
		s.namespace = c.Namespace(t)
		for _, node := range w.nodes {
			object := fixture.Netexec("on-"+node, node)
			object.Spec.Containers[0].ReadinessProbe = nil
			c.Create(t, s.namespace, object)
		}
	}
	for _, s := range w.spaces() {
		for _, node := range w.nodes {
			s.pods = append(s.pods, c.readyWithin(t, s.namespace, "on-"+node))
		}
	}
	c.restoreEgressIPs(t, w.namespaces(), w.nodes...)
	outside := c.Machine(t, lab.Outside)
	fabric := netip.AddrFrom4([4]byte{172, 31, 0, 254})
	w.places = []*sourceRecorder{record(t, place{"outside", outside.NetNS, lab.OutsideAddr()}), record(t, place{"outside on the fabric", outside.NetNS, fabric})}
	for _, node := range w.nodes {
		w.places = append(w.places, record(t, place{node, c.Machine(t, node).NetNS, c.Addr(t, node)}))
	}
	return w
}

func (w *egressWorld) spaces() []*egressSpace {
	return []*egressSpace{w.one, w.several, w.none, w.unhosted}
}

func (w *egressWorld) namespaces() (names []string) {
	for _, s := range w.spaces() {
		names = append(names, s.namespace)
	}
	return names
}

// assign sets the egress IPs that every test begins with, and waits until packets have them.
func (w *egressWorld) assign(t *testing.T) {
	t.Helper()
	for _, node := range w.nodes {
		w.setEgressCIDRs(t, node)
	}
	w.hosts(t, map[string][]netip.Addr{fixture.Node1: {egressIP(0)}, fixture.Node2: {egressIP(1)}, fixture.Node3: {egressIP(2)}})
	w.uses(t, w.one, egressIP(0))
	w.uses(t, w.several, egressIP(1), egressIP(2))
	w.uses(t, w.none)
	w.uses(t, w.unhosted, egressIP(3))
	w.agrees(t)
}

// hosts sets the egress IPs of all nodes: first those of nodes that have one less, so that no two nodes have one.
func (w *egressWorld) hosts(t *testing.T, ips map[string][]netip.Addr) {
	t.Helper()
	for _, node := range w.nodes {
		w.hostEgressIPs(t, node, slices.DeleteFunc(slices.Clone(w.hosted[node]), func(a netip.Addr) bool { return !slices.Contains(ips[node], a) })...)
	}
	for _, node := range w.nodes {
		w.hostEgressIPs(t, node, ips[node]...)
	}
	w.hosted = ips
}

func (w *egressWorld) uses(t *testing.T, s *egressSpace, ips ...netip.Addr) {
	t.Helper()
	w.useEgressIPs(t, s.namespace, ips...)
	s.ips = ips
}

const (
	nothing  = "nothing"               // the source of packets that do not arrive
	noAnswer = ", without an answer: " // follows the source
)

// row names a line of the table: a pod and a destination.
type row struct{ namespace, pod, to string }

// table has the sources that destinations see.
type table map[row]string

// want returns the sources by the egress IPs as the objects have them, if all nodes are reachable.
func (w *egressWorld) want(t *testing.T) table {
	t.Helper()
	all := table{}
	for _, s := range w.spaces() {
		for _, p := range s.pods {
			node := w.Addr(t, p.Node)
			for _, at := range w.places {
				source := node.String()
				switch {
				case at.name == p.Node:
					source = p.Addr.String()
				case slices.Contains(w.nodes, at.name) || len(s.ips) == 0:
				default:
					source = w.selected(p, s.ips)
				}
				all[row{s.namespace, p.Name, at.name}] = source
			}
		}
	}
	return all
}

// selected returns the source of a pod's packets among egress IPs, of which those that no node hosts are not used.
func (w *egressWorld) selected(p pod, ips []netip.Addr) string {
	usable := slices.DeleteFunc(slices.Clone(ips), func(a netip.Addr) bool {
		for _, hosted := range w.hosted {
			if slices.Contains(hosted, a) {
				return false
			}
		}
		return true
	})
	if ip := egressip.Select(p.Addr, usable); ip.IsValid() {
		return ip.String()
	}
	return nothing
}

// answerTime is how long the table waits for answers: twice as long as until a datagram is sent again.
const answerTime = 2 * time.Second

// see sends a datagram from each pod to each destination, and returns the sources. Without an answer a datagram is sent again.
func (w *egressWorld) see(ctx context.Context) table {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	var mu sync.Mutex
	got, round := table{}, w.rounds.Add(1)
	var group sync.WaitGroup
	for _, s := range w.spaces() {
		for _, p := range s.pods {
			for _, at := range w.places {
				group.Go(func() {
					r := row{s.namespace, p.Name, at.name}
					text := fmt.Sprintf("egress IP %d %s/%s", round, r.namespace, r.pod)
					asked := at.ask(ctx, p, text)
					sources := at.sources(text)
					if len(sources) > 0 && asked != nil {
						sources += noAnswer + asked.Error()
					}
					mu.Lock()
					defer mu.Unlock()
					got[r] = sources
					if sources == "" {
						got[r] = nothing
					}
				})
			}
		}
	}
	group.Wait()
	return got
}

// agrees waits until the sources are those of the objects.
func (w *egressWorld) agrees(t *testing.T) {
	t.Helper()
	w.becomes(t, w.want(t))
}

func (w *egressWorld) becomes(t *testing.T, want table) {
	t.Helper()
	fixture.EventuallyEqual(t, fixture.SyncTime, "the sources of packets", func(ctx context.Context) (string, error) {
		return cmp.Diff(want, w.see(ctx)), nil
	})
}

// during looks at the sources again and again while the function runs. Each is one of the tables' or none: packets may be lost.
func (w *egressWorld) during(t *testing.T, do func(), allowed ...table) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var looking sync.WaitGroup
	rounds := 0
	looking.Go(func() {
		for ; ctx.Err() == nil; rounds++ {
			for r, got := range w.see(ctx) {
				sources, _, _ := strings.Cut(got, noAnswer)
				for source := range strings.SplitSeq(sources, " and ") {
					if source != nothing && !slices.ContainsFunc(allowed, func(a table) bool { return a[r] == source }) {
						fixture.Arrived(t, "%v: got source %s, want %s, or nothing", r, source, sourcesOf(allowed, r))
					}
				}
			}
		}
	})
	defer looking.Wait()
	defer cancel()
	do()
	cancel()
	looking.Wait()
	t.Logf("looked %d times", rounds)
}

// possible are the tables of the objects while each one of a namespace's egress IPs is the only one that it can use.
func (w *egressWorld) possible(t *testing.T) []table {
	t.Helper()
	all := []table{w.want(t)}
	for _, s := range w.spaces() {
		whole := s.ips
		for _, ip := range whole {
			s.ips = []netip.Addr{ip}
			all = append(all, w.want(t))
		}
		s.ips = whole
	}
	return all
}

func sourcesOf(tables []table, r row) string {
	all := map[string]bool{}
	for _, one := range tables {
		all[one[r]] = true
	}
	return strings.Join(slices.Sorted(maps.Keys(all)), " or ")
}

// sourceRecorder answers datagrams at a place, and has their sources by their texts.
type sourceRecorder struct {
	place
	conn net.PacketConn

	mu  sync.Mutex
	all map[string][]string
}

// record answers until the test ends.
func record(t *testing.T, at place) *sourceRecorder {
	t.Helper()
	conn, err := at.netns.ListenPacket("udp4", netip.AddrPortFrom(at.addr, 0).String())
	if err != nil {
		t.Fatal(err)
	}
	r := &sourceRecorder{place: at, conn: conn, all: map[string][]string{}}
	var serving sync.WaitGroup
	serving.Go(r.serve)
	t.Cleanup(func() {
		conn.Close()
		serving.Wait()
	})
	return r
}

func (r *sourceRecorder) serve() {
	buffer := make([]byte, 1<<10)
	for {
		length, from, err := r.conn.ReadFrom(buffer)
		if err != nil {
			return // closed
		}
		text := string(buffer[:length])
		if udp, ok := from.(*net.UDPAddr); ok {
			source := udp.AddrPort().Addr().Unmap().String()
			r.mu.Lock()
			if !slices.Contains(r.all[text], source) {
				r.all[text] = append(r.all[text], source)
			}
			r.mu.Unlock()
		}
		_, _ = r.conn.WriteTo(buffer[:length], from) // the sender reports that no answer arrives
	}
}

// sources returns the sources of a text, and deletes them.
func (r *sourceRecorder) sources(text string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.all[text]
	delete(r.all, text)
	return strings.Join(all, " and ")
}

// ask sends the text from a pod until it is answered.
func (r *sourceRecorder) ask(ctx context.Context, p pod, text string) error {
	conn, err := p.NetNS.DialContext(ctx, "udp4", r.conn.LocalAddr().String())
	if err != nil {
		return err
	}
	defer conn.Close()
	buffer := make([]byte, 1<<10)
	return fixture.Resending(ctx, conn, func() error {
		_, err := conn.Write([]byte(text))
		return err
	}, func() error {
		_, err := conn.Read(buffer)
		return err
	})
}
