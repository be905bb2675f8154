package native

import (
	"context"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
)

// Missing returns the given flows that the switch lacks, or has with other actions, timeouts or another cookie. Without flows it only checks
// that the switch answers. Errors are those of Run.
func (n *Native) Missing(ctx context.Context, flows []*ovs.Flow) (missing []*ovs.Flow, err error) {
	err = within(ctx, n.timeout, n.flows, func(ctx context.Context, c *switchConn) error {
		if len(flows) == 0 {
			_, err := c.do(ctx, 1, func(int) openflow.Message { return &openflow.DescRequest{} })
			return err
		}
		wanted, err := newFlowDigests(ovs.State{Flows: flows})
		if err != nil {
			return err
		}
		if err := c.dump(ctx, dumped{flow: func(is *openflow.FlowStats) { wanted.compare(is) }}); err != nil {
			return err
		}
		steps, _, _ := wanted.steps()
		missing = (&plan{bundle: steps}).wanted()
		return nil
	})
	return missing, err
}
