package ovs

import (
	"context"
	"slices"
)

// WatchPackets calls handle for each packet of SendPacket until the context ends.
func (f *Fake) WatchPackets(ctx context.Context, handle func(PacketIn)) {
	f.mu.Lock()
	f.lastWatcher++
	id := f.lastWatcher
	f.packets[id] = handle
	f.mu.Unlock()
	<-ctx.Done()
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.packets, id)
}

// SendPacket sends a packet to all handlers of WatchPackets, as a flow does with ToController, and returns their number.
func (f *Fake) SendPacket(p PacketIn) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, handle := range f.packets {
		handle(p)
	}
	return len(f.packets)
}

// Injection is a call of Inject.
type Injection struct {
	InPort int
	Packet []byte
}

// Inject implements Interface. It records the packet for Injections; flows have no effect.
func (f *Fake) Inject(ctx context.Context, inPort int, packet []byte) error {
	if err := ValidateInjection(inPort, packet); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.answer(ctx); err != nil {
		return err
	}
	if f.bridge == nil {
		return f.errNoBridge()
	}
	f.injected = append(f.injected, Injection{inPort, slices.Clone(packet)})
	return nil
}

// Injections returns the packets of Inject.
func (f *Fake) Injections() []Injection {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.injected)
}
