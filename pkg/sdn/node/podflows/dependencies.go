package podflows

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/pkg/sdn/policy"
)

// Dependencies are the other components that the flows of pods need. All are required.
type Dependencies struct {
	Store    Store
	Policies Policies
	Cache    sandbox.Cache
	Compile  func(pipeline.Pod) pipeline.State
	Events   Events
}

// Store is the flow store (*flowstore.Store). It has sources of inputs.KindVNID, inputs.KindNamespaceUID, inputs.KindNamespaceVNID,
// inputs.KindPodPolicies and inputs.KindEgressFirewall.
type Store interface {
	Update(u flowstore.Update) []*flowstore.Commit
	Require(ctx context.Context, inputs ...flowstore.Input) error
	Value(input flowstore.Input) (value any, ok bool)
	Compiled(owner pipeline.Owner) *pipeline.State
}

// Policies installs the rules of network policies about pods of this node, and publishes inputs.PodPolicies (*networkpolicy.Policies).
type Policies interface {
	// Fetch makes the labels of the namespace known, and returns the UID of the Namespace; "" in mode subnet.
	Fetch(ctx context.Context, namespace string) (types.UID, error)
	Attach(ctx context.Context, owner pipeline.Owner, key policy.PodKey, pod pipeline.Pod, object *corev1.Pod) (done func(context.Context) error)
	Detach(owner pipeline.Owner) (done func(context.Context) error)
}

// Events emits Warning Events on pods.
type Events interface {
	WarnPod(pod sandbox.Pod, reason, message string)
}
