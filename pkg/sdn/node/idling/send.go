package idling

import (
	"context"
	"fmt"

	"k8s.io/klog/v2"
)

// runSend sends due packets until the context ends.
func (h *Holder) runSend(ctx context.Context) {
	var revalidated uint64 // the last release whose flows the datapath uses
	for {
		select {
		case <-h.wakeSend:
		case <-ctx.Done():
			return
		}
		h.mu.Lock()
		due := h.due
		h.due = nil
		h.mu.Unlock()
		var early []*packet
		ready := due[:0]
		for _, p := range due {
			if p.release <= revalidated {
				ready = append(ready, p)
			} else {
				early = append(early, p)
			}
		}
		h.send(ctx, ready, nil)
		if len(early) == 0 {
			continue
		}
		release, err := h.await(ctx)
		if err == nil {
			revalidated = release
		}
		h.send(ctx, early, err)
	}
}

// await waits until the datapath uses the flows of all services that were released before, and returns the number of their last release.
func (h *Holder) await(ctx context.Context) (release uint64, err error) {
	if err := h.awaits.Wait(ctx); err != nil {
		return 0, fmt.Errorf("wait for the interval between waits for the datapath: %w", err)
	}
	h.mu.Lock()
	release = h.releases
	h.mu.Unlock()
	if err := h.bridge.AwaitDatapath(ctx); err != nil {
		return 0, fmt.Errorf("wait until the datapath uses the flows of endpoints: %w", err)
	}
	return release, nil
}

// send sends packets through the flows, from the first table on: they are evaluated as any packet. After an error the rest is dropped.
func (h *Holder) send(ctx context.Context, packets []*packet, err error) {
	sent := 0
	for _, p := range packets {
		if err != nil {
			break
		}
		if err = h.bridge.Inject(ctx, p.inPort, p.frame); err == nil {
			sent++
		}
	}
	h.mu.Lock()
	h.statistics.Sent += uint64(sent)                   //nolint:gosec // not negative
	h.statistics.Dropped += uint64(len(packets) - sent) //nolint:gosec // not negative
	h.mu.Unlock()
	if err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Info("Failed to send packets that were held for idled services", "packets", len(packets)-sent, "err", err,
			"action", "none, clients of TCP repeat them")
	}
}
