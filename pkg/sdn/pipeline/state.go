package pipeline

import "github.com/ovsdn/ovsdn/pkg/ovs"

// State is what one owner wants on the switch. Groups, meters and conntrack flushes join it as features need
// them; the order in which its parts reach the switch is the store's affair, never a feature's.
type State struct {
	Flows []*ovs.Flow // cookies are filled in by the store
}
