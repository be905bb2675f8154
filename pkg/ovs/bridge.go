package ovs

import (
	"fmt"
	"maps"
	"slices"
)

// Datapath types. OVSDB may also have "" for the default, DatapathSystem.
const (
	DatapathSystem = "system" // the kernel's
	DatapathNetdev = "netdev" // userspace
)

// CheckForeign returns an error with the names of the ports that the pod network did not add, or nil if there are none.
func (b Bridge) CheckForeign(ports []Port) error {
	var names []string
	for _, p := range ports {
		if !slices.Contains(b.Ports, p.Name) && p.ExternalIDs[b.PortID] == "" {
			names = append(names, p.Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	return &foreignBridgeError{bridge: b.Name, ports: names}
}

// Validate rejects table names with which `ovs-ofctl --names` would print no names, and values that Open vSwitch ignores.
func (b Bridge) Validate() error {
	if b.Name == "" {
		return fmt.Errorf("bridge: the name is empty")
	}
	if b.DatapathType != DatapathSystem && b.DatapathType != DatapathNetdev {
		return fmt.Errorf("bridge %s: datapath type %q, want system or netdev", b.Name, b.DatapathType)
	}
	table := make(map[string]int, len(b.TableNames))
	for _, id := range slices.Sorted(maps.Keys(b.TableNames)) {
		name := b.TableNames[id]
		if id < 0 || id > maxTable {
			return fmt.Errorf("bridge %s: table %d is not in the range 0 to %d", b.Name, id, maxTable)
		}
		if name == "" {
			return fmt.Errorf("bridge %s: the name of table %d is empty", b.Name, id)
		}
		if other, taken := table[name]; taken {
			return fmt.Errorf("bridge %s: tables %d and %d have the same name %q", b.Name, other, id, name)
		}
		table[name] = id
	}
	return nil
}
