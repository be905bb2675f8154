// Package servicenat translates connections to node ports, external IPs and addresses of load balancers to the service's cluster IP, with nftables
// (--service-proxy=ovs). It translates those of clients outside of the cluster and of the node's own programs, and routes them to tun0. The switch selects the
// endpoint, and the host's conntrack restores the original address in replies. Programs that are bound to another address of the node get tun0's
// as their source, also at cluster IPs.
package servicenat

import (
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"sigs.k8s.io/knftables"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostconntrack"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/nftables"
)

// Options are the node's settings.
type Options struct {
	Interface      string       // the host's interface to the switch
	ServiceNetwork netip.Prefix // of cluster IPs
	// ClusterNetworks have the addresses of pods, whose packets come from the switch.
	ClusterNetworks []netip.Prefix
	// Gateway is the address of Interface, which the node's own packets to services get as their source: replies of pods of other nodes return through the switch.
	Gateway netip.Addr
	// FirstClientPort is the first source port at Gateway that the switch gives no client outside.
	FirstClientPort uint16
	// NodePortAddresses are disjoint IPv4 ranges: node ports answer only at addresses of the node in these; empty: at all of its addresses.
	NodePortAddresses []netip.Prefix
	// ForwardedDSCP is the mark by which the switch recognizes packets of other hosts that the node translated.
	ForwardedDSCP uint8
	// WarnNode emits an Event about the Node.
	WarnNode func(reason, message string)
}

// Translator writes the rules of all services. Its methods are safe for concurrent use.
type Translator struct {
	options Options
	changed chan struct{} // has an element after a change of the desired state
	synced  atomic.Bool

	// Replaced in tests.
	open       func() (knftables.Interface, error)
	generation func() (uint32, error)
	now        func() time.Time
	localAddrs func() ([]netip.Addr, error)
	flush      func(hostconntrack.Filter) error

	mu           sync.Mutex
	services     map[string][]key      // by service
	declarations map[key][]declaration // by service name: the first one is active
	dirty        map[key]struct{}      // changed since the last write
}

// declaration is a frontend of a service. Two services can have the same external IP and port.
type declaration struct {
	service  string
	frontend *Frontend
}

// New returns a Translator that writes nothing before Run. Call Set for all services before Run, which replaces the rules of a previous agent.
func New(o Options) *Translator {
	return &Translator{
		options: o, changed: make(chan struct{}, 1), open: newNFT, generation: nftables.Generation, now: time.Now,
		localAddrs: nodeAddrs, flush: hostconntrack.Flush,
		services: map[string][]key{}, declarations: map[key][]declaration{}, dirty: map[key]struct{}{},
	}
}

// Set replaces the frontends of a service, of which no two have the same address, protocol and port; without any it deletes them. It does not wait for the kernel.
// Of two services with the same frontend, the first one by name has it.
func (t *Translator) Set(service string, frontends []Frontend) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, k := range t.services[service] {
		t.withdraw(service, k)
	}
	delete(t.services, service)
	for _, f := range frontends {
		t.declare(service, &f)
		t.services[service] = append(t.services[service], f.key())
	}
	if len(t.dirty) > 0 {
		select {
		case t.changed <- struct{}{}:
		default: // the writer has not taken the last change yet
		}
	}
}

func (t *Translator) declare(service string, f *Frontend) {
	k := f.key()
	i, _ := slices.BinarySearchFunc(t.declarations[k], service, declaration.compare)
	t.declarations[k] = slices.Insert(t.declarations[k], i, declaration{service, f})
	t.dirty[k] = struct{}{}
}

func (t *Translator) withdraw(service string, k key) {
	i, _ := slices.BinarySearchFunc(t.declarations[k], service, declaration.compare)
	if t.declarations[k] = slices.Delete(t.declarations[k], i, i+1); len(t.declarations[k]) == 0 {
		delete(t.declarations, k)
	}
	t.dirty[k] = struct{}{}
}

func (d declaration) compare(service string) int { return strings.Compare(d.service, service) }

// Synced reports whether the rules of all services have been written once.
func (t *Translator) Synced() bool { return t.synced.Load() }

// takeAll returns the active frontends.
func (t *Translator) takeAll() map[key]*Frontend {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.dirty)
	all := make(map[key]*Frontend, len(t.declarations))
	for k, declared := range t.declarations {
		all[k] = declared[0].frontend
	}
	return all
}

// takeChanged returns the active frontends that may have changed since the last call; nil: deleted.
func (t *Translator) takeChanged() map[key]*Frontend {
	t.mu.Lock()
	defer t.mu.Unlock()
	changed := make(map[key]*Frontend, len(t.dirty))
	for k := range t.dirty {
		changed[k] = nil
		if declared := t.declarations[k]; len(declared) > 0 {
			changed[k] = declared[0].frontend
		}
	}
	t.dirty = map[key]struct{}{}
	return changed
}
