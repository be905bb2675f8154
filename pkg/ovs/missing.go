package ovs

import (
	"context"

	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
)

// Missing returns those of the flows that the switch does not have exactly so: it lacks them, or has them with other actions,
// time-outs or another cookie. Asked about none it only makes sure that the switch answers. Errors are as Run's.
func (n *Native) Missing(ctx context.Context, flows []*Flow) (missing []*Flow, err error) {
	err = within(ctx, n.timeout, n.flows, func(ctx context.Context, c *switchConn) error {
		if len(flows) == 0 {
			_, err := c.do(ctx, 1, func(int) openflow.Message { return &openflow.DescRequest{} })
			return err
		}
		found, err := compare(ctx, c, State{Flows: flows})
		if err != nil {
			return err
		}
		missing = found.plan.wanted()
		return nil
	})
	return missing, err
}

// Missing does what Native's does.
func (f *Fake) Missing(ctx context.Context, flows []*Flow) (missing []*Flow, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.answer(ctx); err != nil {
		return nil, err
	}
	for _, flow := range flows {
		key, text, err := flowText(flow)
		if err != nil {
			return nil, err
		}
		if f.tables.texts[key] != text {
			missing = append(missing, flow)
		}
	}
	return missing, nil
}
