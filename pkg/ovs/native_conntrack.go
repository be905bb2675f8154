package ovs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// ListConnections implements Interface.
func (n *Native) ListConnections(ctx context.Context, zones Zones, each func(Connection)) error {
	if err := zones.validate(); err != nil {
		return err
	}
	err := n.onDatapath(ctx, func(ctx context.Context, datapath string) error {
		var strange error
		err := n.command(ctx, func(line []byte) {
			switch c, ok, err := parseConnection(line, zones); {
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

// revalidation is how long the datapath may treat packets as before: twice the longest pause between two rounds, by default
// (other_config:max-revalidator in ovs-vswitchd.conf.db(5)).
const revalidation = time.Second

// AwaitDatapath returns when the datapath treats packets by the flows that the switch has now. Until vswitchd has gone round once, it goes on by
// what it has worked out from former ones.
func (n *Native) AwaitDatapath(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, n.timeout)
	defer cancel()
	if err := blame(ctx, limited, n.timeout, n.awaitRounds(limited)); err != nil {
		return fmt.Errorf("wait for the datapath: %w", err)
	}
	return nil
}

func (n *Native) awaitRounds(ctx context.Context) error {
	for range 2 { // what is waited for is the end of a round, and the first one may have begun before
		_, err := n.print(ctx, "revalidator/wait")
		var refused *commandError
		switch {
		case errors.As(err, &refused): // there are bridges of both datapath types
			pause(ctx, revalidation)
		case err != nil:
			return err
		}
	}
	return ctx.Err()
}

// AwaitDatapath does what Native's does: the fake has no caches.
func (f *Fake) AwaitDatapath(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.answer(ctx)
}

// onDatapath calls f with the name that dpctl has for the bridge's datapath (ovs-dpctl(8)). All bridges of one type share one.
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

// limitChunk is how many zones get a limit by one command: vswitchd does nothing else meanwhile, and the kernel takes 5,461 in a message
// (an attribute has 64 KiB, struct ovs_zone_limit 12 bytes).
const limitChunk = 1024

// LimitZones lets each of the zones have at most that many connections. Connections beyond a lower limit stay. The userspace datapath loses
// the limits when vswitchd ends. It is not the default limit, which all zones without one of their own share there.
func (n *Native) LimitZones(ctx context.Context, zones Zones, limit int) error {
	err := zones.validate()
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

// Tracker is how many connections a connection tracker takes, and how many it has.
type Tracker struct{ Size, Used int }

// Free returns how many connections the tracker has room for.
func (t Tracker) Free() int { return max(t.Size-t.Used, 0) }

// Tracker returns the state of the bridge's tracker. The kernel's is that of the process's network namespace, with the host's own connections
// (nf_conntrack-sysctl in its documentation).
func (n *Native) Tracker(ctx context.Context) (t Tracker, err error) {
	err = n.onDatapath(ctx, func(ctx context.Context, datapath string) error {
		read := func(_ context.Context, name, _ string) (string, error) {
			b, err := os.ReadFile("/proc/sys/net/netfilter/" + name)
			return string(b), err
		}
		size, used := "nf_conntrack_max", "nf_conntrack_count"
		if datapath != datapathSystem+"@ovs-"+datapathSystem {
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
		return Tracker{}, fmt.Errorf("read size of the connection tracker: %w", err)
	}
	return t, nil
}
