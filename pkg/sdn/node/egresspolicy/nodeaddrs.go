package egresspolicy

import (
	"fmt"
	"net/netip"
	"sync"

	networkv1 "github.com/openshift/api/network/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// nodeAddrs has the addresses of the nodes, and of external machines: the VTEPs of all HostSubnets.
type nodeAddrs struct {
	changed func(netip.Addr) // called without the lock

	mu     sync.RWMutex
	byName map[string]netip.Addr
	count  map[netip.Addr]int
}

// watchNodeAddrs calls changed for each address that became or is no longer a node's.
func watchNodeAddrs(hostSubnets cache.SharedIndexInformer, changed func(netip.Addr)) (*nodeAddrs, cache.InformerSynced, error) {
	a := &nodeAddrs{changed: changed, byName: map[string]netip.Addr{}, count: map[netip.Addr]int{}}
	reg, err := hostSubnets.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: a.set, UpdateFunc: func(_, now any) { a.set(now) },
		DeleteFunc: func(obj any) {
			if name, err := cache.DeletionHandlingObjectToName(obj); err == nil {
				a.replace(name.Name, netip.Addr{})
			}
		},
	})
	if err != nil {
		return nil, nil, fmt.Errorf("add event handler: %w", err)
	}
	return a, reg.HasSynced, nil
}

func (a *nodeAddrs) set(obj any) {
	o, ok := obj.(*networkv1.HostSubnet)
	if !ok {
		return
	}
	if addr, err := config.ParseHostIP(o.HostIP); err == nil { // else the last valid one is still in use
		a.replace(o.Name, addr)
	}
}

// replace sets the address of a node; invalid: it was deleted.
func (a *nodeAddrs) replace(name string, addr netip.Addr) {
	for _, changed := range a.swap(name, addr) {
		a.changed(changed)
	}
}

// swap is replace without the calls of changed, for which it returns the addresses.
func (a *nodeAddrs) swap(name string, addr netip.Addr) (changed []netip.Addr) {
	a.mu.Lock()
	defer a.mu.Unlock()
	previous, known := a.byName[name]
	if previous == addr {
		return nil
	}
	if known {
		if a.count[previous]--; a.count[previous] == 0 {
			delete(a.count, previous)
			changed = append(changed, previous)
		}
		delete(a.byName, name)
	}
	if addr.IsValid() {
		a.byName[name] = addr
		if a.count[addr]++; a.count[addr] == 1 {
			changed = append(changed, addr)
		}
	}
	return changed
}

func (a *nodeAddrs) has(addr netip.Addr) bool {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.count[addr] > 0
}

// len returns the number of nodes and external machines.
func (a *nodeAddrs) len() int {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return len(a.byName)
}
