package pods

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/ipam"
)

// census is what there is of pods on this node: in the kernel, in OVSDB and on the disk.
//
// It says who lives. A sandbox lives as long as its network namespace, and with that goes the device in it; so a host veth that is
// gone means a sandbox that is gone. The path of the namespace means nothing: it may not be visible from here. What
// the Kubernetes API says of the pod means nothing either: it is early or late.
type census struct {
	devices map[string]bool     // the host's
	ports   map[string]ovs.Port // pods', by name
	leases  []ipam.Lease
}

func (m *Manager) census(ctx context.Context) (census, error) {
	c := census{ports: map[string]ovs.Port{}}
	ports, err := m.bridge.ListPorts(ctx)
	if err != nil {
		return c, err
	}
	for _, p := range ports {
		if p.ExternalIDs[IDSandbox] != "" {
			c.ports[p.Name] = p
		}
	}
	if c.devices, err = m.links.List(ctx); err != nil {
		return c, err
	}
	for name := range c.ports {
		if c.devices[name] {
			continue
		}
		// The kernel may pass over a device while others come and go (NLM_F_DUMP_INTR in linux/netlink.h).
		if c.devices[name], err = m.links.Exists(ctx, name); err != nil {
			return c, err
		}
	}
	if c.leases, err = m.ipam.List(); err != nil {
		return c, &diskError{fmt.Errorf("read the address directory: %w", err)}
	}
	return c, nil
}

// pods reads the ports. Those whose external_ids are damaged, of which only the name is sure, come by that.
func (c census) pods() (pods []Pod, damaged map[string]error) {
	damaged = map[string]error{}
	for _, name := range slices.Sorted(maps.Keys(c.ports)) {
		pod, err := podOf(c.ports[name])
		if err != nil {
			damaged[name] = err
			continue
		}
		pods = append(pods, pod)
	}
	return pods, damaged
}

// attachments returns those that have a lease or a port.
func (c census) attachments() map[Attachment]bool {
	all := map[Attachment]bool{}
	for _, l := range c.leases {
		if !l.Damaged() {
			all[Attachment{l.ContainerID, l.IfName}] = true
		}
	}
	pods, _ := c.pods()
	for _, p := range pods {
		all[p.Attachment] = true
	}
	return all
}

func compareAttachments(a, b Attachment) int {
	return strings.Compare(a.Sandbox+"/"+a.IfName, b.Sandbox+"/"+b.IfName)
}
