package ovs

import "context"

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
