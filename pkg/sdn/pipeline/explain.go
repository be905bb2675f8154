package pipeline

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// Explain returns the meaning of the registers and ports in the match and actions of a flow of the table, in their order, such as
// "source VNID 17". It returns nothing for values with a mask and for registers that have another meaning in the table.
func Explain(table int, match, actions string) []string {
	var found []string
	record := func(field, value string) {
		if text := explainField(table, field, value); text != "" {
			found = append(found, text)
		}
	}
	for part := range strings.SplitSeq(match, ",") {
		if field, value, ok := strings.Cut(part, "="); ok {
			record(field, value)
		}
	}
	for action := range strings.SplitSeq(actions, ",") {
		if load, ok := strings.CutPrefix(action, "load:"); ok {
			value, register, _ := strings.Cut(load, "->")
			record(fieldOf(register), value)
		} else if port, ok := strings.CutPrefix(action, "output:"); ok {
			record("output", port)
		} else if point, ok := strings.CutPrefix(action, "obs_point_id="); ok {
			record("obs_point_id", strings.TrimSuffix(point, ")"))
		}
	}
	return found
}

// fieldOf returns the name that matches have for a register that load takes as a whole, "" for other destinations.
func fieldOf(register string) string {
	if register == tunID {
		return "tun_id"
	}
	number, ok := strings.CutPrefix(register, "NXM_NX_REG")
	number, whole := strings.CutSuffix(number, "[]")
	if !ok || !whole {
		return ""
	}
	return "reg" + number
}

func explainField(table int, field, value string) string {
	n, err := strconv.ParseUint(value, 0, 32)
	if err != nil { // a mask, or a port by its name
		return ""
	}
	rewritesARP := table == tableARPLocal || table == tableARPRemote || table == tableARPAnswer
	switch field {
	case "reg0":
		return "source " + explainVNID(n)
	case "tun_id":
		return "tunnel " + explainVNID(n)
	case "in_port":
		return "from " + explainPort(n)
	case "output":
		return "to " + explainPort(n)
	case "reg1":
		if !rewritesARP {
			return "destination " + explainVNID(n)
		}
	case "reg2":
		if !rewritesARP && n != 0 {
			return "to " + explainPort(n)
		}
	case "reg3":
		return fmt.Sprintf("conntrack zone %d", n)
	case "reg5":
		return fmt.Sprintf("denied by rule %d", n)
	case "obs_point_id":
		return explainPoint(n)
	case "reg6":
		return "node address " + explainAddr(n)
	case "reg10":
		return fmt.Sprintf("egress firewall %d", n)
	case "reg11":
		if n == UnusableEgressIP {
			return "no egress IP that a node hosts"
		}
		return "egress IP " + explainAddr(n)
	}
	return ""
}

func explainVNID(n uint64) string {
	switch vnid := config.VNID(n); { //nolint:gosec // of 32 bits
	case vnid.IsGlobal():
		return "VNID 0 (global)"
	case n == 1:
		return "VNID 1 (outside of the cluster network)"
	default:
		return "VNID " + vnid.String()
	}
}

func explainPort(n uint64) string {
	switch n {
	case PortVXLAN:
		return "vxlan0"
	case PortTun:
		return "tun0"
	}
	return fmt.Sprintf("port %d", n)
}

func explainAddr(n uint64) string {
	if n == 0 {
		return "none"
	}
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, uint32(n)))).String() //nolint:gosec // of 32 bits
}
