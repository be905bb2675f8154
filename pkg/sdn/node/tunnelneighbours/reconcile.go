package tunnelneighbours

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// refreshJitter spreads the refreshes, from a half to two thirds of the time to expiry.
const refreshJitter = 0.3

// route finds the next hop of a VTEP.
func (n *Neighbours) route(ctx context.Context, key string) error {
	if key == allVTEPs {
		n.routeAll()
		return nil
	}
	vtep, err := netip.ParseAddr(key)
	if err != nil {
		return fmt.Errorf("key of a VTEP: %w", err)
	}
	if !n.isUsed(vtep) {
		n.setHop(vtep, nil)
		return nil
	}
	if err := n.limiter.Wait(ctx); err != nil {
		return err
	}
	next, err := n.ovs.TunnelHop(ctx, vtep)
	switch {
	case ovs.IsUnavailable(err):
		n.routes.AddAfter(key, retryInterval) // Resync comes earlier
		return nil
	case ovs.IsNoTunnelRoute(err):
		retryAfter, report := n.missesRoute(vtep)
		n.routes.AddAfter(key, retryAfter)
		if report {
			klog.FromContext(ctx).Error(err, "Open vSwitch drops packets to other nodes", "vtep", vtep, "retryAfter", retryAfter,
				"action", "move the node's address to a bridge of Open vSwitch with the userspace datapath")
		}
		return nil
	case err != nil:
		return err
	}
	n.setHop(vtep, &next)
	return nil
}

func (n *Neighbours) routeAll() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lastPass = time.Now()
	if n.lost {
		n.lost = false
		n.setAll()
	}
	for vtep := range n.uses {
		n.routes.Add(vtep.String())
	}
}

func (n *Neighbours) isUsed(vtep netip.Addr) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.uses[vtep] > 0
}

// missesRoute counts the failures to find a route to the VTEP, whose hop remains: vswitchd has no routes for a moment while it reads them again, also
// when an interface of a pod is added. It requests a report of the first VTEP that fails again.
func (n *Neighbours) missesRoute(vtep netip.Addr) (retryAfter time.Duration, report bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.unroutable[vtep]++
	if n.unroutable[vtep] == 1 {
		return routeDelay, false
	}
	report, n.reported = !n.reported, true
	return retryInterval, report
}

// setHop records the next hop of a VTEP; nil: the VTEP is no longer used.
func (n *Neighbours) setHop(vtep netip.Addr, next *ovs.TunnelHop) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.unroutable, vtep)
	n.reported = n.reported && len(n.unroutable) > 0
	if n.uses[vtep] == 0 { // perhaps deleted in the meantime
		next = nil
	}
	before, existed := n.hopOf[vtep]
	if existed && next != nil && before == *next {
		return
	}
	if existed {
		delete(n.hopOf, vtep)
		n.release(keyOf(before))
	}
	if next == nil {
		return
	}
	n.hopOf[vtep] = *next
	key := keyOf(*next)
	if n.hops[key] == nil {
		n.hops[key] = &hop{TunnelHop: *next}
		n.setter.Add(key)
	}
	n.hops[key].vteps++
}

// release deletes a hop that no VTEP uses. Its entry in the cache expires.
func (n *Neighbours) release(key string) {
	h := n.hops[key]
	if h.vteps--; h.vteps == 0 {
		n.deleteKernelHop(key, h)
		delete(n.hops, key)
	}
}

// deleteKernelHop leaves the entry if another hop has it by now: a device may have moved to another bridge.
func (n *Neighbours) deleteKernelHop(key string, h *hop) {
	if n.kernelHops[h.kernel] == key {
		delete(n.kernelHops, h.kernel)
	}
}

// set copies the MAC of a next hop from the kernel's neighbour table to the cache, which also delays the expiry of the entry.
func (n *Neighbours) set(ctx context.Context, key string) error {
	if err := n.limiter.Wait(ctx); err != nil {
		return err
	}
	next, err := n.prepare(key)
	if err != nil || next == nil {
		return err
	}
	mac, err := n.kernel.mac(next.kernel)
	if err != nil {
		return err
	}
	if mac == nil {
		n.setter.AddAfter(key, wait.Jitter(retryInterval, refreshJitter))
		return nil
	}
	err = n.ovs.SetTunnelNeighbour(ctx, ovs.TunnelNeighbour{Bridge: next.Bridge, Addr: next.Addr, MAC: mac})
	if ovs.IsUnavailable(err) {
		n.setter.AddAfter(key, retryInterval) // Resync comes earlier
		return nil
	}
	if err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if h := n.hops[key]; h != nil {
		h.mac, h.set = mac, time.Now()
		n.setter.AddAfter(key, wait.Jitter(n.aging/2, refreshJitter))
	}
	return nil
}

// prepare returns the hop of the key, or nil. It records the entry of the kernel before its MAC is read, so that changed misses no change.
func (n *Neighbours) prepare(key string) (*hop, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	h := n.hops[key]
	if h == nil {
		return nil, nil
	}
	index, err := n.kernel.index(h.Device)
	if _, missing := errors.AsType[netlink.LinkNotFoundError](err); missing {
		n.setter.AddAfter(key, retryInterval) // its new address is an event
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	n.deleteKernelHop(key, h)
	h.kernel, h.mac = kernelNeighbour{index: index, addr: h.Addr}, nil
	n.kernelHops[h.kernel] = key
	prepared := *h
	return &prepared, nil
}
