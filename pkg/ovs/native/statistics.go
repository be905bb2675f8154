package native

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
)

// TableStats returns the counters of the bridge's tables, of which an empty one has no flows.
func (n *Native) TableStats(ctx context.Context) (tables []openflow.TableStats, err error) {
	err = n.request(ctx, &openflow.TableStatsRequest{}, func(m openflow.Message) {
		if reply, ok := m.(*openflow.TableStatsReply); ok {
			tables = append(tables, reply.Tables...)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("read table statistics: %w", err)
	}
	return tables, nil
}

// PortStats returns the counters of the bridge's ports. vswitchd reads them from the datapath when it is asked: those in OVSDB are up to 5 seconds old.
func (n *Native) PortStats(ctx context.Context) (ports []openflow.PortStats, err error) {
	err = n.request(ctx, &openflow.PortStatsRequest{Port: openflow.PortAny}, func(m openflow.Message) {
		if reply, ok := m.(*openflow.PortStatsReply); ok {
			ports = append(ports, reply.Ports...)
		}
	})
	if err != nil {
		return nil, fmt.Errorf("read port statistics: %w", err)
	}
	return ports, nil
}

// Drop is a flow that drops packets.
type Drop struct {
	ovs.Key
	Packets uint64
}

// OwnerDrops returns the flows with that cookie and no action. vswitchd finds them by an index, and reads no others.
func (n *Native) OwnerDrops(ctx context.Context, cookie uint64) ([]Drop, error) {
	return n.drops(ctx, openflow.FlowFilter{Table: openflow.AllTables, Cookie: cookie, CookieMask: ^uint64(0)})
}

// TableDrops returns the flows of the table without an action.
func (n *Native) TableDrops(ctx context.Context, table uint8) ([]Drop, error) {
	return n.drops(ctx, openflow.FlowFilter{Table: table})
}

func (n *Native) drops(ctx context.Context, filter openflow.FlowFilter) (drops []Drop, err error) {
	err = n.request(ctx, &openflow.FlowStatsRequest{FlowFilter: filter}, func(m openflow.Message) {
		reply, ok := m.(*openflow.FlowStatsReply)
		if !ok {
			return
		}
		for i := range reply.Flows {
			if f := &reply.Flows[i]; f.Instructions.IsDrop() {
				drops = append(drops, Drop{ovs.KeyOf(f.Key()), f.Packets})
			}
		}
	})
	if err != nil {
		return nil, fmt.Errorf("read flow statistics: %w", err)
	}
	return drops, nil
}

// request sends one message, and calls each for every part of the reply.
func (n *Native) request(ctx context.Context, m openflow.Message, each func(openflow.Message)) error {
	return within(ctx, n.timeout, n.flows, func(ctx context.Context, c *switchConn) error {
		answers, err := c.do(ctx, 1, func(int) openflow.Message { return m })
		if err != nil {
			return err
		}
		for _, a := range answers {
			if e, ok := a.message.(*openflow.Error); ok {
				return e
			}
			each(a.message)
		}
		return nil
	})
}

// DatapathStats are the counters of a datapath, which all bridges of its type share (ovs-dpctl(8)).
type DatapathStats struct {
	Hit, Missed, Lost uint64 // packets; each missed one is an upcall, of which vswitchd did not receive the lost ones
	Flows, Masks      int    // megaflows and the masks of these; Masks is 0 for the userspace datapath
}

// DatapathStats returns the counters of the bridge's datapath.
func (n *Native) DatapathStats(ctx context.Context) (stats DatapathStats, err error) {
	err = n.onDatapath(ctx, func(ctx context.Context, datapath string) error {
		lines := 0
		var strange error
		err := n.command(ctx, func(line []byte) {
			found, err := stats.parse(string(line))
			if found {
				lines++
			}
			if strange == nil {
				strange = err
			}
		}, "dpctl/show", datapath)
		switch {
		case err != nil:
			return err
		case strange == nil && lines < 2:
			return fmt.Errorf("dpctl/show %s has no statistics", datapath)
		}
		return strange
	})
	if err != nil {
		return DatapathStats{}, fmt.Errorf("read datapath statistics: %w", err)
	}
	return stats, nil
}

// parse reads a line such as "  lookups: hit:5 missed:3 lost:0", "  flows: 7" or "  masks: hit:9 total:2 hit/pkt:1.1". It reports whether it has counters.
func (s *DatapathStats) parse(line string) (found bool, err error) {
	words := strings.Fields(line)
	if len(words) < 2 {
		return false, nil
	}
	number := func(word, name string, to *uint64) {
		if text, ok := strings.CutPrefix(word, name); ok && err == nil {
			*to, err = strconv.ParseUint(text, 10, 64)
		}
	}
	var count uint64
	switch words[0] {
	case "lookups:":
		for _, w := range words[1:] {
			number(w, "hit:", &s.Hit)
			number(w, "missed:", &s.Missed)
			number(w, "lost:", &s.Lost)
		}
		return true, err
	case "flows:":
		number(words[1], "", &count)
		s.Flows = int(count) //nolint:gosec // the datapath has at most some 200,000
		return true, err
	case "masks:":
		for _, w := range words[1:] {
			number(w, "total:", &count)
		}
		s.Masks = int(count) //nolint:gosec // at most the number of flows
	}
	return false, err
}

// ZoneUse is the number of connections in zones.
type ZoneUse struct {
	Total   int     // of all zones
	Fullest int     // of the zone with most
	Ratio   float64 // the largest part of its limit that a zone has; zones without a limit do not count
}

// zonesChunk is the number of zones per command: the kernel's answer has the size of a page, with 12 bytes for each zone (struct ovs_zone_limit).
const zonesChunk = 128

// ZoneUse returns the number of connections in the zones, which must have a limit: the datapath counts no others.
func (n *Native) ZoneUse(ctx context.Context, zones ovs.Zones) (use ZoneUse, err error) {
	if err := zones.Validate(); err != nil {
		return use, err
	}
	all := make([]uint16, 0, int(zones.Last)-int(zones.First)+1)
	for zone := int(zones.First); zone <= int(zones.Last); zone++ {
		all = append(all, uint16(zone)) //nolint:gosec // between two zones
	}
	err = n.eachZone(ctx, all, func(z zoneState) {
		use.Total += z.count
		use.Fullest = max(use.Fullest, z.count)
		if z.limit > 0 {
			use.Ratio = max(use.Ratio, float64(z.count)/float64(z.limit))
		}
	})
	if err != nil {
		return ZoneUse{}, fmt.Errorf("count connections of zones %d to %d: %w", zones.First, zones.Last, err)
	}
	return use, nil
}

// ZoneLimits returns the maximum number of connections of zones, 0 for no limit. A zone without one of its own has the default.
func (n *Native) ZoneLimits(ctx context.Context, zones []uint16) (map[uint16]int, error) {
	limits := make(map[uint16]int, len(zones))
	if err := n.eachZone(ctx, zones, func(z zoneState) { limits[z.zone] = z.limit }); err != nil {
		return nil, fmt.Errorf("read the limits of %d conntrack zones: %w", len(zones), err)
	}
	return limits, nil
}

// zoneState is the limit of a zone, and the number of its connections.
type zoneState struct {
	zone         uint16
	limit, count int
}

// eachZone reads the zones.
func (n *Native) eachZone(ctx context.Context, zones []uint16, each func(zoneState)) error {
	return n.onDatapath(ctx, func(ctx context.Context, datapath string) error {
		for some := range slices.Chunk(zones, zonesChunk) {
			names := make([]string, len(some))
			for i, zone := range some {
				names[i] = strconv.Itoa(int(zone))
			}
			var strange error
			err := n.command(ctx, func(line []byte) {
				z, isZone, err := parseZone(string(line))
				if err != nil {
					strange = err
				} else if isZone {
					each(z)
				}
			}, "dpctl/ct-get-limits", datapath, "zone="+strings.Join(names, ","))
			if err == nil {
				err = strange
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// parseZone reads a line such as "zone=8192,limit=100,count=7"; others, such as the default limit, have no count.
func parseZone(line string) (z zoneState, isZone bool, err error) {
	if !strings.Contains(line, ",count=") {
		return z, false, nil
	}
	if _, err := fmt.Sscanf(line, "zone=%d,limit=%d,count=%d", &z.zone, &z.limit, &z.count); err != nil {
		return z, false, fmt.Errorf("state of a zone: %q: %w", line, err)
	}
	return z, true, nil
}

// Version returns the version of vswitchd, such as 3.1.0.
func (n *Native) Version(ctx context.Context) (string, error) {
	text, err := n.print(ctx, "version")
	if err != nil {
		return "", err
	}
	// The first line is "ovs-vswitchd (Open vSwitch) 3.1.0".
	line, _, _ := strings.Cut(text, "\n")
	words := strings.Fields(line)
	if len(words) == 0 {
		return "", errNoReply
	}
	return words[len(words)-1], nil
}
