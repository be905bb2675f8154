package pods

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apitypes "k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
)

// noFlows discards all flows.
type noFlows struct{}

func (noFlows) Ready(context.Context, string) (apitypes.UID, error) { return "", nil }
func (noFlows) NamespaceUID(string) apitypes.UID                    { return "" }
func (noFlows) Set(context.Context, sandbox.Pod, *corev1.Pod) error { return nil }
func (noFlows) SetAsync(context.Context, sandbox.Pod, *corev1.Pod) func(context.Context) error {
	return func(context.Context) error { return nil }
}
func (noFlows) PodChanged(context.Context, *corev1.Pod)     {}
func (noFlows) RecoverBandwidth([]sandbox.Pod, []ovs.Meter) {}
func (noFlows) Expected(sandbox.Pod) []*ovs.Flow            { return nil }
func (noFlows) Remove(sandbox.Attachment) func(context.Context) error {
	return func(context.Context) error { return nil }
}
