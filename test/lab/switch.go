package lab

import (
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/ovsdn/ovsdn/test/lab/machine"
)

const (
	underlayBridge = "br-ex"
	ovsRunDir      = "/run/openvswitch"
	ovsdbSocket    = ovsRunDir + "/db.sock"
	ovsDB          = "/etc/openvswitch/conf.db"
	ovsPriority    = "--adjustment=-10" // ovs-ctl's defaults for both of its daemons
)

// switchUnits bring up the node's address and, where it is the host's own, Open vSwitch. The userspace datapath sends tunnel packets only through a
// bridge of its own that has the node's address; with the kernel's the address is on the interface itself.
func (l *Lab) switchUnits(name string, addr netip.Addr) []machine.Unit {
	if l.state.Shape.Switch == HostSwitch {
		return append(hostSwitch(name), l.underlayOnSwitch(addr))
	}
	// Kubelet needs the address before there is a switch.
	units := []machine.Unit{task("underlay", slices.Concat(linksUp(), giveAddress(addr, uplink))...)}
	if l.state.Shape.Datapath == Netdev {
		units = append(units, followSwitch(addr))
	}
	return units
}

// hostSwitch is the host's Open vSwitch.
func hostSwitch(name string) []machine.Unit {
	units := []machine.Unit{
		task("ovsdb", []string{"mkdir", "-p", filepath.Dir(ovsdbSocket)},
			// The database outlives a restart of the node.
			[]string{"sh", "-c", "test -e " + ovsDB + " || ovsdb-tool create " + ovsDB + " /usr/share/openvswitch/vswitch.ovsschema"}),
		{Name: "ovsdb-server", After: []string{"ovsdb"}, Socket: ovsdbSocket, Commands: [][]string{{
			"nice", ovsPriority, "ovsdb-server", ovsDB, "--remote=punix:" + ovsdbSocket, "--pidfile", "-vconsole:info", "-vsyslog:off", "-vfile:off",
		}}},
		task("ovs-init", []string{"ovs-vsctl", "--no-wait", "init"},
			// Left by the node's last run. Only what is new in the database is waited for until it is on the host.
			[]string{"ovs-vsctl", "--no-wait", "--if-exists", "del-br", underlayBridge},
			[]string{"ovs-vsctl", "--no-wait", "set", "Open_vSwitch", ".", "external_ids:system-id=" + name, "external_ids:hostname=" + name}),
		{Name: "ovs-vswitchd", After: []string{"ovs-init"}, Commands: [][]string{{
			"nice", ovsPriority, "ovs-vswitchd", "unix:" + ovsdbSocket, "--pidfile", "-vconsole:info", "-vsyslog:off", "-vfile:off",
		}}},
	}
	units[2].After = []string{"ovsdb-server"}
	return units
}

// underlayOnSwitch gives the node its address when its host's Open vSwitch runs.
func (l *Lab) underlayOnSwitch(addr netip.Addr) machine.Unit {
	unit := task("underlay", linksUp()...)
	unit.After = []string{"ovs-vswitchd"}
	if l.state.Shape.Datapath == System {
		unit.Commands = append(unit.Commands, giveAddress(addr, uplink)...)
		return unit
	}
	unit.Commands = slices.Concat(unit.Commands, bridgeUplink(addr), giveAddress(addr, underlayBridge), [][]string{{
		// The command fails until Open vSwitch has detected the address.
		"sh", "-c", "for try in $(seq 100); do " + addRoute + " && exit; sleep 0.1; done; exit 1",
	}})
	return unit
}

// followSwitch moves the node's address to a bridge of the Open vSwitch that comes in a pod, as an administrator's network configuration would, and
// back when that one ends: only by this address kubelet hears that there is to be another.
func followSwitch(addr netip.Addr) machine.Unit {
	toBridge := and(append(bridgeUplink(addr), giveAddress(addr, underlayBridge)...)...)
	toUplink := and(append([][]string{{"nft", "add table netdev uplink; delete table netdev uplink"}}, giveAddress(addr, uplink)...)...)
	// Its control socket is not found by the program's name: its pidfile is locked in another PID namespace. Each vswitchd makes a socket of its own.
	script := `on=uplink
while sleep 0.2; do
	socket=` + ovsRunDir + `/ovs-vswitchd.$(cat ` + ovsRunDir + `/ovs-vswitchd.pid 2>/dev/null).ctl
	if ovs-appctl --timeout=10 --target="$socket" version >/dev/null 2>&1; then is=$(stat -c %i,%Z "$socket"); else is=uplink; fi
	[ "$is" = "$on" ] && continue
	on=nothing
	if [ "$is" = uplink ]; then ` + toUplink + `; else ` + toBridge + ` && ` + addRoute + `; fi && on=$is
	echo "vswitchd: $is, address: $on"
done`
	return machine.Unit{Name: "underlay-bridge", After: []string{"underlay"}, Commands: [][]string{{"sh", "-c", script}}}
}

func linksUp() [][]string {
	return [][]string{{"ip", "link", "set", "lo", "up"}, {"ip", "link", "set", uplink, "up"}}
}

// giveAddress takes it from where else it is.
func giveAddress(addr netip.Addr, owner string) [][]string {
	return [][]string{
		{"ip", "-4", "address", "flush", "to", addr.String() + "/32"},
		{"ip", "address", "replace", addr.String() + "/24", "dev", owner},
		{"ip", "link", "set", owner, "up"},
		{"ip", "route", "replace", "default", "via", controlPlaneAddr().String()},
		{"ip", "route", "replace", outsideNetwork, "via", outsideFabricAddr().String()},
	}
}

// bridgeUplink has Open vSwitch take what arrives at the uplink. The kernel sees it too, and would take or route a copy of every packet.
func bridgeUplink(addr netip.Addr) [][]string {
	return [][]string{
		{
			"ovs-vsctl", "--timeout=20", "--may-exist", "add-br", underlayBridge,
			"--", "set", "bridge", underlayBridge, "datapath_type=netdev", "fail_mode=standalone", "other_config:hwaddr=" + macOf(addr).String(),
			"--", "--may-exist", "add-port", underlayBridge, uplink,
		},
		{"nft", `add table netdev uplink; add chain netdev uplink ingress { type filter hook ingress device "` + uplink + `" priority 0; policy drop; }`},
	}
}

// addRoute: Open vSwitch loses the kernel's routes for a moment whenever an interface is added or deleted, and packets to other nodes with
// them. A route of its own remains.
const addRoute = `ovs-appctl --target="${socket:-ovs-vswitchd}" ovs/route/add ` + fabricNetwork + " " + underlayBridge

// and is a line of shell that goes on while commands succeed.
func and(commands ...[]string) string {
	var lines []string
	for _, command := range commands {
		var words []string
		for _, word := range command {
			words = append(words, "'"+strings.ReplaceAll(word, "'", `'\''`)+"'")
		}
		lines = append(lines, strings.Join(words, " "))
	}
	return strings.Join(lines, " && ")
}
