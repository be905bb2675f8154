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

func (noFlows) ready(context.Context, string) (apitypes.UID, error) { return "", nil }
func (noFlows) namespaceUID(string) apitypes.UID                    { return "" }
func (noFlows) set(context.Context, sandbox.Pod, *corev1.Pod) error { return nil }
func (noFlows) setAsync(context.Context, sandbox.Pod, *corev1.Pod) func(context.Context) error {
	return func(context.Context) error { return nil }
}
func (noFlows) podChanged(context.Context, *corev1.Pod)     {}
func (noFlows) recoverBandwidth([]sandbox.Pod, []ovs.Meter) {}
func (noFlows) expected(sandbox.Pod) []*ovs.Flow            { return nil }
func (noFlows) remove(sandbox.Attachment) func(context.Context) error {
	return func(context.Context) error { return nil }
}
