package native

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// ListConnections implements Interface.
func (n *Native) ListConnections(ctx context.Context, zones ovs.Zones, each func(ovs.Connection)) error {
	if err := zones.Validate(); err != nil {
		return err
	}
	err := n.onDatapath(ctx, func(ctx context.Context, datapath string) error {
		var strange error
		datapathType, _, _ := strings.Cut(datapath, "@")
		err := n.command(ctx, func(line []byte) {
			switch c, ok, err := ovs.ParseConnection(line, datapathType, zones); {
			case err != nil && strange == nil:
				strange = err
			case ok:
				each(c)
			}
		}, "dpctl/dump-conntrack", datapath)
		return errors.Join(err, strange)
	})
	if err != nil {
		return fmt.Errorf("list connections: %w", err)
	}
	return nil
}

// revalidation is how long the datapath may use outdated flows: twice the default maximum interval between two revalidations
// (other_config:max-revalidator in ovs-vswitchd.conf.db(5)).
const revalidation = time.Second

// AwaitDatapath implements Interface.
func (n *Native) AwaitDatapath(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, n.timeout)
	defer cancel()
	if err := timeoutError(ctx, limited, n.timeout, n.awaitRounds(limited)); err != nil {
		return fmt.Errorf("wait for the datapath: %w", err)
	}
	return nil
}

func (n *Native) awaitRounds(ctx context.Context) error {
	for range 2 { // the first wait may end with a revalidation that began before the call
		_, err := n.print(ctx, "revalidator/wait")
		var refused *commandError
		switch {
		case errors.As(err, &refused): // bridges of both datapath types exist
			pause(ctx, revalidation)
		case err != nil:
			return err
		}
	}
	return ctx.Err()
}

// onDatapath calls f with the name of the bridge's datapath for dpctl (ovs-dpctl(8)). All bridges of one type share a datapath.
func (n *Native) onDatapath(ctx context.Context, f func(ctx context.Context, datapath string) error) error {
	return within(ctx, replaceTimeout, n.db, func(ctx context.Context, db *database) error {
		row, exists := db.bridge(n.bridge)
		if !exists {
			return n.errNoBridge()
		}
		kind := db.stateOf(row).datapathType
		return f(ctx, kind+"@ovs-"+kind)
	})
}

// limitChunk is the number of zones per command: vswitchd does nothing else during a command, and the kernel accepts 5,461 in a message (an
// attribute has 64 KiB, struct ovs_zone_limit 12 bytes).
const limitChunk = 1024

// LimitZones sets the maximum number of connections of each zone. Existing connections beyond a lower limit remain. The userspace datapath
// loses the limits when vswitchd ends. LimitZones does not set the default limit, which in that datapath all zones without a limit share.
func (n *Native) LimitZones(ctx context.Context, zones ovs.Zones, limit int) error {
	err := zones.Validate()
	if err == nil {
		err = n.onDatapath(ctx, func(ctx context.Context, datapath string) error {
			args := []string{datapath}
			for zone := int(zones.First); zone <= int(zones.Last); zone++ {
				args = append(args, fmt.Sprintf("zone=%d,limit=%d", zone, limit))
				if len(args) > limitChunk || zone == int(zones.Last) {
					if _, err := n.print(ctx, "dpctl/ct-set-limits", args...); err != nil {
						return err
					}
					args = args[:1]
				}
			}
			return nil
		})
	}
	if err != nil {
		return fmt.Errorf("limit connections of zones %d to %d: %w", zones.First, zones.Last, err)
	}
	return nil
}

// Tracker is the size of a conntrack table and the number of its entries.
type Tracker struct{ Size, Used int }

// Free returns the number of free entries.
func (t Tracker) Free() int { return max(t.Size-t.Used, 0) }

// Tracker returns the state of the bridge's conntrack table. That of the kernel belongs to the process's network namespace and contains the
// host's connections (nf_conntrack-sysctl in the kernel's documentation).
func (n *Native) Tracker(ctx context.Context) (t Tracker, err error) {
	err = n.onDatapath(ctx, func(ctx context.Context, datapath string) error {
		read := func(_ context.Context, name, _ string) (string, error) {
			b, err := os.ReadFile("/proc/sys/net/netfilter/" + name)
			return string(b), err
		}
		size, used := "nf_conntrack_max", "nf_conntrack_count"
		if datapath != ovs.DatapathSystem+"@ovs-"+ovs.DatapathSystem {
			read = func(ctx context.Context, name, datapath string) (string, error) { return n.print(ctx, name, datapath) }
			size, used = "dpctl/ct-get-maxconns", "dpctl/ct-get-nconns"
		}
		number := func(name string) (int, error) {
			text, err := read(ctx, name, datapath)
			if err != nil {
				return 0, err
			}
			return strconv.Atoi(strings.TrimSpace(text))
		}
		var err error
		if t.Size, err = number(size); err == nil {
			t.Used, err = number(used)
		}
		return err
	})
	if err != nil {
		return Tracker{}, fmt.Errorf("read size of the conntrack table: %w", err)
	}
	return t, nil
}
