package ovs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
)

// Fake is an in-memory Interface for tests. It keeps flows and ports by the rules of the real switch and fails where that
// fails; the same contract tests run against both.
type Fake struct {
	// RefuseFlow, when set, is asked about each flow that is about to be added. A reason other than "" refuses it.
	RefuseFlow func(f *Flow) string
	// BeforeBundle, when set, runs before each bundle is applied, and may block. Its error is returned instead of applying.
	BeforeBundle func(ctx context.Context) error

	mu          sync.Mutex
	name        string
	bridge      *Bridge // nil until EnsureBridge or AddBridge
	marked      bool    // the bridge, by EnsureBridge
	ports       map[string]Port
	lastOFPort  int
	noDevice    map[string]bool
	tables      fakeTables
	tracked     []Connections
	unavailable bool
	bundles     int
	changes     int
	packets     map[int]func(PacketIn) // who watches them
	lastWatcher int
}

var _ Interface = (*Fake)(nil)

// NewFake returns a switch without the bridge: EnsureBridge makes it, as on the real one.
func NewFake(bridge string) *Fake {
	return &Fake{
		name:     bridge,
		ports:    map[string]Port{},
		noDevice: map[string]bool{},
		tables:   newFakeTables(),
		packets:  map[int]func(PacketIn){},
	}
}

// SetUnavailable makes every call fail as if Open vSwitch did not run, or ends that.
func (f *Fake) SetUnavailable(unavailable bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unavailable = unavailable
}

// AddDevice undoes RemoveDevice.
func (f *Fake) AddDevice(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.noDevice, name)
}

// RemoveDevice makes adding a system port of that name fail: there is no such device. All other devices exist.
func (f *Fake) RemoveDevice(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.noDevice[name] = true
}

// Bridge returns what EnsureBridge last asked for, or false before that.
func (f *Fake) Bridge() (Bridge, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.bridge == nil {
		return Bridge{}, false
	}
	return *f.bridge, true
}

// AddBridge makes the bridge as somebody else would, with the ports.
func (f *Fake) AddBridge(b Bridge, ports ...Port) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bridge = &b
	for _, p := range ports {
		p.OFPort = f.nextOFPort()
		f.ports[p.Name] = clonePort(p)
	}
}

// answer is the state of mind in which every call begins. The caller holds the lock.
func (f *Fake) answer(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if f.unavailable {
		return &unavailableError{errors.New("the fake was told so")}
	}
	return nil
}

// EnsureBridge implements Interface.
func (f *Fake) EnsureBridge(ctx context.Context, b Bridge) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if b.Name != f.name {
		return fmt.Errorf("this backend programs bridge %q, not %q", f.name, b.Name)
	}
	if err := b.validate(); err != nil {
		return err
	}
	if err := f.answer(ctx); err != nil {
		return err
	}
	if f.bridge != nil && !f.marked {
		if err := b.foreign(slices.Collect(maps.Values(f.ports))); err != nil {
			return err
		}
	}
	if f.bridge != nil && f.bridge.DatapathType != b.DatapathType {
		return &datapathMismatchError{bridge: b.Name, got: f.bridge.DatapathType, want: b.DatapathType}
	}
	b.TableNames = maps.Clone(b.TableNames)
	f.bridge, f.marked = &b, true
	return nil
}

// ListPorts implements Interface.
func (f *Fake) ListPorts(ctx context.Context) ([]Port, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.answer(ctx); err != nil {
		return nil, err
	}
	if f.bridge == nil {
		return nil, f.errNoBridge()
	}
	var ports []Port
	for _, name := range slices.Sorted(maps.Keys(f.ports)) {
		ports = append(ports, clonePort(f.ports[name]))
	}
	return ports, nil
}

func (f *Fake) errNoBridge() error {
	return &noBridgeError{f.name}
}

func clonePort(p Port) Port {
	p.Options, p.ExternalIDs = maps.Clone(p.Options), maps.Clone(p.ExternalIDs)
	return p
}

// AddPort implements Interface.
func (f *Fake) AddPort(ctx context.Context, p Port) (Port, error) {
	if err := p.validate(); err != nil {
		return Port{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.answer(ctx); err != nil {
		return Port{}, err
	}
	if f.bridge == nil {
		return Port{}, f.errNoBridge()
	}
	old, exists := f.ports[p.Name]
	if exists && mustRemake(old, p) {
		delete(f.ports, p.Name)
		exists = false
	}
	if reason := f.refusePort(p); reason != "" {
		delete(f.ports, p.Name)
		return Port{}, &PortError{Port: p.Name, Reason: reason}
	}
	p = clonePort(p)
	if exists {
		// What the caller leaves alone stays.
		p.MTURequest = cmp.Or(p.MTURequest, old.MTURequest)
		p.MAC = cmp.Or(p.MAC, old.MAC)
		p.OFPort = cmp.Or(p.OFPort, old.OFPort)
	}
	if p.OFPort == 0 {
		p.OFPort = f.nextOFPort()
	}
	if len(p.Options) == 0 {
		p.Options = nil
	}
	if len(p.ExternalIDs) == 0 {
		p.ExternalIDs = nil
	}
	p.Error = ""
	f.ports[p.Name] = p
	return clonePort(p), nil
}

// refusePort returns vswitchd's reason not to set the port up, "" if it has none.
func (f *Fake) refusePort(p Port) string {
	switch p.Type {
	case "":
		if f.noDevice[p.Name] {
			return fmt.Sprintf("could not open network device %s (No such device)", p.Name)
		}
	case "internal":
	case "vxlan":
		if p.Options["remote_ip"] == "" {
			return fmt.Sprintf("%s: vxlan type requires valid 'remote_ip' argument", p.Name)
		}
	default:
		return fmt.Sprintf("could not open network device %s (Address family not supported by protocol)", p.Name)
	}
	for _, q := range f.ports {
		if q.Name != p.Name && p.OFPort != 0 && q.OFPort == p.OFPort {
			return fmt.Sprintf("it got another OpenFlow port, since %d is taken", p.OFPort)
		}
	}
	return ""
}

// nextOFPort returns a free number, the last one given last: like vswitchd, it reuses a number late.
func (f *Fake) nextOFPort() int {
	taken := make(map[int]bool, len(f.ports))
	for _, q := range f.ports {
		taken[q.OFPort] = true
	}
	for {
		f.lastOFPort = f.lastOFPort%maxPort + 1
		if !taken[f.lastOFPort] {
			return f.lastOFPort
		}
	}
}

// DeletePort implements Interface.
func (f *Fake) DeletePort(ctx context.Context, name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if name == "" || name == f.name {
		return fmt.Errorf("delete port %q of bridge %s: that is not a port of ours", name, f.name)
	}
	if err := f.answer(ctx); err != nil {
		return err
	}
	delete(f.ports, name)
	return nil
}
