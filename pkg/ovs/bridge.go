package ovs

import (
	"fmt"
	"maps"
	"slices"
)

// protocolVersions are those that br0 speaks: 1.0 for a bare `ovs-ofctl`, 1.3 for people's habits, 1.4 for bundles, 1.5 for groups.
const protocolVersions = "OpenFlow10,OpenFlow13,OpenFlow14,OpenFlow15"

// failModeSecure keeps vswitchd from installing a NORMAL flow of its own.
const failModeSecure = "secure"

// datapathSystem is what OVSDB also writes as "".
const datapathSystem = "system"

// keyOwner in a bridge's external_ids, with the value owner, says that EnsureBridge has made the bridge or taken it over, so that it
// may be changed and deleted. Bridges of versions before it have no such mark.
const (
	keyOwner = "ovsdn.io/owner"
	owner    = "ovsdn-node"
)

// foreign returns the error that names the ports of somebody else, nil if there are none.
func (b Bridge) foreign(ports []Port) error {
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

// validate refuses what Open vSwitch would take and then not show.
func (b Bridge) validate() error {
	if b.Name == "" {
		return fmt.Errorf("bridge: the name is empty")
	}
	if b.DatapathType != datapathSystem && b.DatapathType != "netdev" {
		return fmt.Errorf("bridge %s: datapath type %q is neither system nor netdev", b.Name, b.DatapathType)
	}
	table := make(map[string]int, len(b.TableNames))
	for _, id := range slices.Sorted(maps.Keys(b.TableNames)) {
		name := b.TableNames[id]
		if id < 0 || id > maxTable {
			return fmt.Errorf("bridge %s: table %d is not in 0 to %d", b.Name, id, maxTable)
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

// bridgeState is the bridge as it is in OVSDB.
type bridgeState struct {
	exists       bool
	marked       bool // as ours
	datapathType string
	failMode     string
	protocols    string
	tableNames   map[int]string
}
