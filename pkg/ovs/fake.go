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

// Fake is an in-memory Interface for tests. It follows the rules of Open vSwitch for flows, groups, meters and ports, errors included;
// the same contract tests run against Open vSwitch.
type Fake struct {
	// RefuseFlow, if set, is called for each flow to be added. A result other than "" is the reason to reject the flow.
	RefuseFlow func(f *Flow) string
	// BeforeBundle, if set, is called before each bundle is applied, and may block. If it returns an error, the bundle is not applied.
	BeforeBundle func(ctx context.Context) error

	mu          sync.Mutex
	name        string
	bridge      *Bridge // nil until EnsureBridge or AddBridge
	marked      bool    // EnsureBridge has marked the bridge
	ports       map[string]Port
	lastOFPort  int
	noDevice    map[string]bool
	tables      fakeTables
	tracked     []Connections
	unavailable bool
	bundles     int
	changes     int
	packets     map[int]func(PacketIn) // handlers of WatchPackets
	lastWatcher int
	injected    []Injection
}

var _ Interface = (*Fake)(nil)

// NewFake returns a switch without a bridge; EnsureBridge creates it.
func NewFake(bridge string) *Fake {
	return &Fake{
		name:     bridge,
		ports:    map[string]Port{},
		noDevice: map[string]bool{},
		tables:   newFakeTables(),
		packets:  map[int]func(PacketIn){},
	}
}

// SetUnavailable sets whether every call fails as if Open vSwitch did not run.
func (f *Fake) SetUnavailable(unavailable bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unavailable = unavailable
}

// AddDevice reverts RemoveDevice.
func (f *Fake) AddDevice(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.noDevice, name)
}

// RemoveDevice removes a system device, so that AddPort fails for it. Without RemoveDevice all devices exist.
func (f *Fake) RemoveDevice(name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.noDevice[name] = true
}

// Bridge returns the bridge of the last EnsureBridge, or false if there was none.
func (f *Fake) Bridge() (Bridge, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.bridge == nil {
		return Bridge{}, false
	}
	return *f.bridge, true
}

// AddBridge creates the bridge with the ports, without the mark of EnsureBridge.
func (f *Fake) AddBridge(b Bridge, ports ...Port) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bridge = &b
	for _, p := range ports {
		p.OFPort = f.nextOFPort()
		f.ports[p.Name] = clonePort(p)
	}
}

// answer returns the error with which every call begins: of the context, or of SetUnavailable. The caller must hold the lock.
func (f *Fake) answer(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if f.unavailable {
		return &unavailableError{errors.New("set by SetUnavailable")}
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
	if err := b.Validate(); err != nil {
		return err
	}
	if err := f.answer(ctx); err != nil {
		return err
	}
	if f.bridge != nil && !f.marked {
		if err := b.CheckForeign(slices.Collect(maps.Values(f.ports))); err != nil {
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
	if err := p.Validate(); err != nil {
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
	if exists && MustRecreate(old, p) {
		delete(f.ports, p.Name)
		exists = false
	}
	if reason := f.refusePort(p); reason != "" {
		delete(f.ports, p.Name)
		return Port{}, &PortError{Port: p.Name, Reason: reason}
	}
	p = clonePort(p)
	if exists {
		// zero values leave the properties of an existing port unchanged
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

// refusePort returns the reason for which vswitchd would fail to set the port up, or "".
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
			return fmt.Sprintf("it got another OpenFlow port, because %d is in use", p.OFPort)
		}
	}
	return ""
}

// nextOFPort returns a free port number. Like vswitchd, it prefers numbers that were not used before.
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
		return fmt.Errorf("delete port %q of bridge %s: not the name of a port that can be deleted", name, f.name)
	}
	if err := f.answer(ctx); err != nil {
		return err
	}
	delete(f.ports, name)
	return nil
}

// AwaitDatapath implements Interface. It does not wait: the fake has no caches.
func (f *Fake) AwaitDatapath(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.answer(ctx)
}

// AwaitEvents implements Interface. The fake has no events.
func (f *Fake) AwaitEvents(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.answer(ctx)
}

// Missing returns the given flows that the fake lacks or has with another text.
func (f *Fake) Missing(ctx context.Context, flows []*Flow) (missing []*Flow, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.answer(ctx); err != nil {
		return nil, err
	}
	for _, flow := range flows {
		key, text, err := flowText(flow)
		if err != nil {
			return nil, err
		}
		if f.tables.texts[key] != text {
			missing = append(missing, flow)
		}
	}
	return missing, nil
}
