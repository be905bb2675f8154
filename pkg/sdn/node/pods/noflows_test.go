package pods

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apitypes "k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// noFlows discards all flows.
type noFlows struct{}

func (noFlows) ready(context.Context, string) (apitypes.UID, error) { return "", nil }
func (noFlows) namespaceUID(string) apitypes.UID                    { return "" }
func (noFlows) set(context.Context, Pod, *corev1.Pod) error         { return nil }
func (noFlows) setAsync(context.Context, Pod, *corev1.Pod) func(context.Context) error {
	return func(context.Context) error { return nil }
}
func (noFlows) podChanged(context.Context, *corev1.Pod) {}
func (noFlows) recoverBandwidth([]Pod, []ovs.Meter)     {}
func (noFlows) expected(Pod) []*ovs.Flow                { return nil }
func (noFlows) remove(Attachment) func(context.Context) error {
	return func(context.Context) error { return nil }
}
