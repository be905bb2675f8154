package pods

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/ipam"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
)

// inventory is the state of pods in the kernel, in OVSDB and on the disk.
//
// A sandbox counts as running while its host veth exists: the kernel deletes the peer with the sandbox's network namespace, and both ends of a pair
// together. Nothing else decides it: the agent may not see the path of the namespace, the Kubernetes API can be behind or
// ahead, and OVSDB can be lost while pods run.
type inventory struct {
	devices map[string]bool        // the host's
	aliased map[string]sandbox.Pod // pods parsed from aliases, by host veth; OFPort is 0
	ports   map[string]ovs.Port    // pods', by name
	leases  []ipam.Lease
	local   func() []*corev1.Pod // Pods.Local, called once
}

func (m *Manager) inventory(ctx context.Context) (inventory, error) {
	c := inventory{devices: map[string]bool{}, aliased: map[string]sandbox.Pod{}, ports: map[string]ovs.Port{}, local: sync.OnceValue(m.pods.Local)}
	ports, err := m.bridge.ListPorts(ctx)
	if err != nil {
		return c, err
	}
	for _, p := range ports {
		if p.ExternalIDs[sandbox.IDSandbox] != "" {
			c.ports[p.Name] = p
		}
	}
	aliases, err := m.links.List(ctx)
	if err != nil {
		return c, err
	}
	for name, alias := range aliases {
		c.addDevice(name, alias)
	}
	if c.leases, err = m.ipam.List(); err != nil {
		return c, &diskError{fmt.Errorf("read the lease directory: %w", err)}
	}
	return c, m.findUnlisted(ctx, c)
}

func (c inventory) addDevice(name, alias string) {
	c.devices[name] = true
	// The alias of a device that is not a pod's does not parse.
	if pod, err := sandbox.ParseAlias(name, alias); err == nil {
		c.aliased[name] = pod
	}
}

// findUnlisted looks up the devices that ports and leases name and the list does not contain: the kernel may omit a device while others are
// created and deleted (NLM_F_DUMP_INTR in linux/netlink.h).
func (m *Manager) findUnlisted(ctx context.Context, c inventory) error {
	names := slices.Collect(maps.Keys(c.ports))
	for _, l := range c.leases {
		if !l.Corrupt() {
			names = append(names, sandbox.Attachment{Sandbox: l.ContainerID, IfName: l.IfName}.HostVeth())
		}
	}
	for _, name := range names {
		if c.devices[name] {
			continue
		}
		alias, exists, err := m.links.Find(ctx, name)
		if err != nil {
			return err
		}
		if exists {
			c.addDevice(name, alias)
		}
	}
	return nil
}

// pods parses the ports. Errors of ports with invalid external_ids are returned by port name.
func (c inventory) pods() (pods []sandbox.Pod, invalid map[string]error) {
	invalid = map[string]error{}
	for _, name := range slices.Sorted(maps.Keys(c.ports)) {
		pod, err := sandbox.ParsePort(c.ports[name])
		if err != nil {
			invalid[name] = err
			continue
		}
		pods = append(pods, pod)
	}
	return pods, invalid
}

// attachments returns those that have a lease, a port or an alias.
func (c inventory) attachments() map[sandbox.Attachment]bool {
	all := map[sandbox.Attachment]bool{}
	for _, l := range c.leases {
		if !l.Corrupt() {
			all[sandbox.Attachment{Sandbox: l.ContainerID, IfName: l.IfName}] = true
		}
	}
	pods, _ := c.pods()
	for _, p := range pods {
		all[p.Attachment] = true
	}
	for _, p := range c.aliased {
		all[p.Attachment] = true
	}
	return all
}

// leased returns the addresses of the attachment's leases.
func (c inventory) leased(a sandbox.Attachment) (addrs []netip.Addr) {
	for _, l := range c.leases {
		if l.ContainerID == a.Sandbox && l.IfName == a.IfName {
			addrs = append(addrs, l.Addr)
		}
	}
	return addrs
}

// compareStaleFirst orders attachments without a device first: their leases may hold the address of a running pod.
func (c inventory) compareStaleFirst(a, b sandbox.Attachment) int {
	if alive := c.devices[a.HostVeth()]; alive != c.devices[b.HostVeth()] {
		if alive {
			return 1
		}
		return -1
	}
	return strings.Compare(a.Sandbox+"/"+a.IfName, b.Sandbox+"/"+b.IfName)
}
