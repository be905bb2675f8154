package ovs

import "context"

// Run implements Interface.
func (n *Native) Run(ctx context.Context, tx *Transaction) error { return n.exec.Run(ctx, tx) }

// Replace implements Interface.
func (n *Native) Replace(ctx context.Context, flows []*Flow) error { return n.exec.Replace(ctx, flows) }
