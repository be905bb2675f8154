package node

import (
	"context"
	"fmt"

	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sysctl"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// localPortRange has the ports of connections of the host's programs. The kernel reports no change of it.
const localPortRange = "net/ipv4/ip_local_port_range"

// newClientPortCheck returns the check for ports of the node's own connections that the switch uses to masquerade clients of services outside, those below
// pipeline.FirstClientPort.
func newClientPortCheck(sysctls sysctl.Dir, warn func(reason string, err error)) *problemCheck {
	find := func(context.Context) (overlap, failure error) {
		first, err := firstLocalPort(sysctls)
		if err != nil || first >= pipeline.FirstClientPort {
			return nil, err
		}
		return fmt.Errorf("net.ipv4.ip_local_port_range begins with %d: replies to the node's own connections from ports below %d may be lost, since the switch gives "+
			"these to clients of services from outside; set it to \"%[2]d 60999\" in /etc/sysctl.d, and run sysctl --system", first, pipeline.FirstClientPort), nil
	}
	return &problemCheck{subject: "ports of the node's own connections", find: find, reason: eventreason.LocalPortsOverlap, warn: warn}
}

// firstLocalPort returns the first port of the range.
func firstLocalPort(sysctls sysctl.Dir) (int, error) {
	text, err := sysctls.Get(localPortRange)
	if err != nil {
		return 0, err
	}
	var first, last int
	if _, err := fmt.Sscan(text, &first, &last); err != nil {
		return 0, fmt.Errorf("parse sysctl %s %q: %w", localPortRange, text, err)
	}
	return first, nil
}
