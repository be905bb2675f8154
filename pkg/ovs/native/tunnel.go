package native

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// The userspace datapath routes and resolves the packets of tunnels itself (Documentation/howto/userspace-tunneling.rst of Open vSwitch). The
// kernel's datapath leaves both to the kernel.

// errTunnelOutput means that a command for tunnels printed something unknown.
var errTunnelOutput = errors.New("unknown output of vswitchd")

// TunnelHop returns the next hop by which the userspace datapath sends packets to the VTEP (IsNoTunnelRoute).
func (n *Native) TunnelHop(ctx context.Context, vtep netip.Addr) (ovs.TunnelHop, error) {
	hop := ovs.TunnelHop{Addr: vtep}
	err := within(ctx, n.timeout, n.db, func(ctx context.Context, db *database) error {
		text, err := n.print(ctx, "ovs/route/lookup", vtep.String())
		var refused *commandError
		if errors.As(err, &refused) {
			return ovs.NewNoTunnelRoute(vtep, "no route of the host matches")
		}
		if err != nil {
			return err
		}
		for line := range strings.Lines(text) {
			switch field, value, _ := strings.Cut(strings.TrimSpace(line), " "); field {
			case "dev":
				hop.Device = value
			case "gateway":
				gateway, err := netip.ParseAddr(value)
				if err != nil {
					return fmt.Errorf("%w: %s", errTunnelOutput, text)
				}
				if !gateway.IsUnspecified() {
					hop.Addr = gateway.Unmap()
				}
			}
		}
		if hop.Device == "" {
			return fmt.Errorf("%w: %s", errTunnelOutput, text)
		}
		if hop.Bridge = db.bridgeOfPort(hop.Device); hop.Bridge == "" {
			return ovs.NewNoTunnelRoute(vtep, "interface "+hop.Device+" is not a port of a bridge")
		}
		return nil
	})
	if err != nil {
		return ovs.TunnelHop{}, fmt.Errorf("look up the tunnel's route: %w", err)
	}
	return hop, nil
}

// bridgeOfPort returns the name of the bridge of a port; "" if no bridge has the port.
func (db *database) bridgeOfPort(name string) string {
	port, ok := db.port(name)
	if !ok {
		return ""
	}
	for _, row := range db.cache.Table(tableBridge).RowsShallow() {
		if b, ok := row.(*bridgeRow); ok && slices.Contains(b.Ports, port.UUID) {
			return b.Name
		}
	}
	return ""
}

// ListTunnelNeighbours returns the tunnels' neighbours whose entries have not expired.
func (n *Native) ListTunnelNeighbours(ctx context.Context) ([]ovs.TunnelNeighbour, error) {
	var all []ovs.TunnelNeighbour
	err := n.limited(ctx, func(ctx context.Context) error {
		return n.command(ctx, func(line []byte) {
			if neighbour, ok := parseTunnelNeighbour(string(line)); ok {
				all = append(all, neighbour)
			}
		}, "tnl/neigh/show")
	})
	if err != nil {
		return nil, fmt.Errorf("list tunnel neighbours: %w", err)
	}
	return all, nil
}

// parseTunnelNeighbour parses a line with address, MAC and bridge. Expired entries have a fourth field, headings no address.
func parseTunnelNeighbour(line string) (neighbour ovs.TunnelNeighbour, ok bool) {
	const fields = 3
	f := strings.Fields(line)
	if len(f) != fields {
		return neighbour, false
	}
	addr, err := netip.ParseAddr(f[0])
	if err != nil {
		return neighbour, false
	}
	mac, err := net.ParseMAC(f[1])
	return ovs.TunnelNeighbour{Bridge: f[2], Addr: addr.Unmap(), MAC: mac}, err == nil
}

// SetTunnelNeighbour sets the MAC of a tunnels' neighbour. The entry expires after TunnelNeighbourAging, unless it is used or set again.
func (n *Native) SetTunnelNeighbour(ctx context.Context, neighbour ovs.TunnelNeighbour) error {
	err := n.limited(ctx, func(ctx context.Context) error {
		_, err := n.print(ctx, "tnl/neigh/set", neighbour.Bridge, neighbour.Addr.String(), neighbour.MAC.String())
		return err
	})
	if err != nil {
		return fmt.Errorf("set tunnel neighbour %s: %w", neighbour.Addr, err)
	}
	return nil
}

// TunnelNeighbourAging returns how long tunnels' neighbours remain without use: 15 minutes by default.
func (n *Native) TunnelNeighbourAging(ctx context.Context) (aging time.Duration, err error) {
	err = n.limited(ctx, func(ctx context.Context) error {
		text, err := n.print(ctx, "tnl/neigh/aging")
		if err != nil {
			return err
		}
		seconds, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil || seconds <= 0 {
			return fmt.Errorf("%w: %s", errTunnelOutput, text)
		}
		aging = time.Duration(seconds) * time.Second
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("read the aging of tunnel neighbours: %w", err)
	}
	return aging, nil
}

// limited calls f with the time limit of one call.
func (n *Native) limited(ctx context.Context, f func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, n.timeout)
	defer cancel()
	return timeoutError(ctx, limited, n.timeout, f(limited))
}
