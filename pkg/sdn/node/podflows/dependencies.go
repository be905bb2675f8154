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

// PodHandler is a feature with flows for the pods of this node, or with inputs of the pods' flows (*networkpolicy.Policies, *egresspolicy.Policies).
type PodHandler interface {
	// Attach is called before the pod's own flows are set, and again for an attached owner. object is the pod as read from the API server; nil: the cached one. The
	// returned function waits until the feature's flows for the pod are installed.
	Attach(ctx context.Context, owner pipeline.Owner, key policy.PodKey, pod pipeline.Pod, object *corev1.Pod) (done func(context.Context) error)

	// Detach is called after the pod's own flows are removed from the store, also for an owner that is not attached. The returned function waits until the
	// feature's flows for the pod are removed.
	Detach(owner pipeline.Owner) (done func(context.Context) error)
}
