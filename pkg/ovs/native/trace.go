package native

import (
	"context"
	"fmt"
	"strings"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// Trace returns the report of vswitchd about the packet's way through the flows of the bridge. No packet is sent, and no flow learned.
func (n *Native) Trace(ctx context.Context, p ovs.TracePacket) (string, error) {
	arguments, err := p.TraceArguments()
	if err != nil {
		return "", err
	}
	bounded, cancel := context.WithCancel(ctx)
	defer cancel()
	var text strings.Builder
	tooLong := false
	err = n.command(bounded, func(line []byte) {
		if tooLong = tooLong || text.Len()+len(line) >= ovs.MaxTraceText; tooLong {
			cancel()
			return
		}
		text.Write(line)
		text.WriteByte('\n')
	}, "ofproto/trace", append([]string{n.bridge}, arguments...)...)
	if tooLong {
		return "", fmt.Errorf("the report of ofproto/trace has more than %d bytes", ovs.MaxTraceText)
	}
	return text.String(), err
}
