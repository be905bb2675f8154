package nodeports

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/listeners"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

const (
	// checkPeriod is the interval of checks of all node ports.
	checkPeriod = 5 * time.Minute

	// confirmTime is the pause before a socket that was found is looked up again: programs open UDP sockets at random ports for a moment.
	confirmTime = 10 * time.Second

	// maxFiltered is the number of ports for which the kernel lists the sockets of one port. For more it lists all sockets once.
	maxFiltered = 8

	// maxNames bounds the names in one Event.
	maxNames = 8
)

// Run checks each new node port, and all node ports at intervals, until the context ends.
func (c *Checker) Run(ctx context.Context) {
	ctx = klog.NewContext(ctx, klog.FromContext(ctx).WithValues("part", "node ports"))
	r := &checks{Checker: c, found: map[port]bool{}}
	for ctx.Err() == nil {
		timer := time.NewTimer(r.round(ctx))
		select {
		case <-ctx.Done():
		case <-c.added:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// checks has the results of previous checks.
type checks struct {
	*Checker
	found     map[port]bool // node ports at which a program listens; true: reported
	allAt     time.Time     // of the next check of all
	confirmAt time.Time     // of the next check of those that are not reported
	failure   reconcile.LastError
}

// round returns the time until the next one, unless a node port is added.
func (r *checks) round(ctx context.Context) time.Duration {
	now := time.Now()
	all := !now.Before(r.allAt)
	if all {
		r.allAt = now.Add(checkPeriod)
	}
	ports := r.take(all)
	unconfirmed := false
	for p, reported := range r.found {
		service := r.holder(p)
		switch {
		case service == "":
			delete(r.found, p)
		case !reported && !now.Before(r.confirmAt):
			ports[p] = service
		case !reported:
			unconfirmed = true
		}
	}
	isNew, err := r.check(ports)
	if r.failure.Set(err) {
		klog.FromContext(ctx).Error(err, "Failed to list sockets at node ports", "retryAfter", checkPeriod)
	}
	if isNew {
		r.confirmAt, unconfirmed = now.Add(confirmTime), true
	}
	next := r.allAt
	if unconfirmed && r.confirmAt.Before(next) {
		next = r.confirmAt
	}
	return max(0, time.Until(next))
}

// check looks up the sockets at node ports, and reports those that it finds for the second time. It returns whether it found others.
func (r *checks) check(ports map[port]string) (isNew bool, err error) {
	used, err := r.sockets(ports)
	if err != nil {
		return false, err
	}
	var fresh []string
	for _, p := range slices.SortedFunc(maps.Keys(ports), port.compare) {
		l, isUsed := used[p]
		if !isUsed {
			delete(r.found, p)
			continue
		}
		reported, again := r.found[p]
		if again && !reported {
			fresh = append(fresh, fmt.Sprintf("node port %d/%s of Service %s is also used by a process of the host's user %d, on %s", p.number, p.protocol, ports[p], l.UID, l.Addr))
		}
		r.found[p] = again
		isNew = isNew || !again
	}
	if len(fresh) > 0 {
		r.options.WarnNode(eventreason.NodePortConflict, reconcile.ShortenBefore(names(fresh), ": packets to addresses of the node reach the service; end the process, "+
			"which `ss -lntup` on the node shows, or let it use another port"))
	}
	return isNew, nil
}

// sockets returns one of the sockets at each of the ports.
func (r *checks) sockets(ports map[port]string) (map[port]listeners.Listener, error) {
	wanted := slices.SortedFunc(maps.Keys(ports), port.compare)
	if len(ports) > maxFiltered {
		wanted = []port{{protocol: corev1.ProtocolTCP}, {protocol: corev1.ProtocolUDP}}
	}
	used := map[port]listeners.Listener{}
	for _, w := range wanted {
		number := uint8(unix.IPPROTO_TCP)
		if w.protocol == corev1.ProtocolUDP {
			number = unix.IPPROTO_UDP
		}
		found, err := r.list(number, w.number)
		if err != nil {
			return nil, err
		}
		for _, l := range found {
			p := port{w.protocol, l.Port}
			if _, ok := ports[p]; ok && r.loses(l) {
				used[p] = l
			}
		}
	}
	return used, nil
}

// names joins the first texts.
func names(all []string) string {
	if more := len(all) - maxNames; more > 0 {
		all = append(slices.Clone(all[:maxNames]), fmt.Sprintf("and %d more", more))
	}
	return strings.Join(all, "; ")
}
