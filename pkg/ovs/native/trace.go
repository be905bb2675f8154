package native

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// Trace returns the report of vswitchd about the packet's way through the flows of the bridge. No packet is sent, and no flow learned.
func (n *Native) Trace(ctx context.Context, p ovs.TracePacket) (string, error) {
	reports, err := n.Traces(ctx, []ovs.TracePacket{p})
	if err != nil {
		return "", err
	}
	return reports[0].Text, reports[0].Err
}

// tracesAtOnce is the number of requests that vswitchd answers before it does other work (run_connection in lib/unixctl.c). That many fit into the buffer of its
// socket, so that writing them does not wait for it.
const tracesAtOnce = 10

// Traces is Trace for several packets, with a report for each. vswitchd traces up to ten of them without other work in between.
func (n *Native) Traces(ctx context.Context, packets []ovs.TracePacket) (reports []ovs.TraceReport, err error) {
	for some := range slices.Chunk(packets, tracesAtOnce) {
		more, err := n.tracesAtOnce(ctx, some)
		if err != nil {
			return nil, err
		}
		reports = append(reports, more...)
	}
	return reports, nil
}

func (n *Native) tracesAtOnce(ctx context.Context, packets []ovs.TracePacket) ([]ovs.TraceReport, error) {
	reports := make([]ovs.TraceReport, len(packets))
	var calls [][]string
	var valid []int // the packet of each call
	for i, p := range packets {
		arguments, err := p.TraceArguments()
		if err != nil {
			reports[i].Err = err
			continue
		}
		calls, valid = append(calls, append([]string{n.bridge}, arguments...)), append(valid, i)
	}
	if len(calls) == 0 {
		return reports, nil
	}
	texts := make([]strings.Builder, len(calls))
	refused, err := n.commands(ctx, "ofproto/trace", calls, func(call int, line []byte) {
		text := &texts[call]
		if text.Len()+len(line) >= ovs.MaxTraceText {
			reports[valid[call]].Err = fmt.Errorf("the report of ofproto/trace has more than %d bytes", ovs.MaxTraceText)
			return
		}
		text.Write(line)
		text.WriteByte('\n')
	})
	if err != nil {
		return nil, err
	}
	for call, i := range valid {
		if reports[i].Text = texts[call].String(); reports[i].Err == nil {
			reports[i].Err = refused[call]
		}
	}
	return reports, nil
}
