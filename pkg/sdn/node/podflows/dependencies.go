package podflows

import (
	"context"

	"k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// Dependencies are the other components that the flows of pods need. Those without a comment are required.
type Dependencies struct {
	Store    Store
	Cache    sandbox.Cache
	Compile  func(pipeline.Pod) pipeline.State
	Events   Events
	Handlers []PodHandler // called in this order

	// FetchNamespace makes the labels of the namespace known to network policies, and returns the UID of the Namespace; nil in mode subnet.
	FetchNamespace func(ctx context.Context, name string) (types.UID, error)
}

// Store is the flow store (*flowstore.Store). It has sources of inputs.KindVNID, inputs.KindNamespaceUID, inputs.KindNamespaceVNID,
// inputs.KindPodPolicies, inputs.KindEgressFirewall and inputs.KindEgressIPs.
type Store interface {
	Update(u flowstore.Update) []*flowstore.Commit
	Require(ctx context.Context, inputs ...flowstore.Input) error
	Value(input flowstore.Input) (value any, ok bool)
	Compiled(owner pipeline.Owner) *pipeline.State
}

// Events emits Warning Events on pods.
type Events interface {
	WarnPod(pod sandbox.Pod, reason, message string)
}
