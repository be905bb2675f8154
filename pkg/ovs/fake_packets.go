package ovs

import "context"

// WatchPackets calls handle for what SendPacket sends, until the context ends.
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

// SendPacket sends a packet to who watches, as a flow does by ToController, and says how many those are.
func (f *Fake) SendPacket(p PacketIn) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, handle := range f.packets {
		handle(p)
	}
	return len(f.packets)
}
