package node

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sysctl"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// localPortRange has the ports of connections of the host's programs. The kernel reports no change of it.
const localPortRange = "net/ipv4/ip_local_port_range"

// clientPortCheckInterval is the interval of checks of localPortRange.
const clientPortCheckInterval = time.Minute

// clientPortCheck reports ports of the node's own connections that the switch uses to masquerade clients of services outside, those below pipeline.FirstClientPort.
type clientPortCheck struct {
	sysctls sysctl.Dir
	warn    func(reason string, err error)

	last   reconcile.LastError // the overlap
	unread reconcile.LastError
}

// run checks the range until the context ends.
func (c *clientPortCheck) run(ctx context.Context) {
	wait.UntilWithContext(ctx, c.check, clientPortCheckInterval)
}

// check writes a log line and an Event for each new range that overlaps. If it can't be read, the previous result remains.
func (c *clientPortCheck) check(ctx context.Context) {
	first, err := c.firstPort()
	if c.unread.Set(err) {
		klog.FromContext(ctx).Error(err, "Failed to check the ports of the node's own connections", "sysctl", localPortRange, "retryAfter", clientPortCheckInterval)
	}
	if err != nil {
		return
	}
	if first < pipeline.FirstClientPort {
		err = fmt.Errorf("net.ipv4.ip_local_port_range begins with %d: replies to the node's own connections from ports below %d may be lost, since the switch gives "+
			"these to clients of services from outside; set it to \"%[2]d 60999\" in /etc/sysctl.d, and run sysctl --system", first, pipeline.FirstClientPort)
	}
	if c.last.Set(err) {
		klog.FromContext(ctx).Error(err, "Ephemeral ports of the node overlap those of services")
		c.warn(eventreason.LocalPortsOverlap, err)
	}
}

// firstPort returns the first port of the range.
func (c *clientPortCheck) firstPort() (int, error) {
	text, err := c.sysctls.Get(localPortRange)
	if err != nil {
		return 0, err
	}
	var first, last int
	if _, err := fmt.Sscan(text, &first, &last); err != nil {
		return 0, fmt.Errorf("parse sysctl %s %q: %w", localPortRange, text, err)
	}
	return first, nil
}
