package pods

import (
	"context"
	"fmt"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// Check compares the attachment with what Add made: the pod's interface and the port.
func (m *Manager) Check(ctx context.Context, req *cniserver.Request) error {
	if err := m.starting(); err != nil {
		return err
	}
	a := Attachment{req.ContainerID, req.IfName}
	unlock, err := m.sandboxes.lock(ctx, a.Sandbox)
	if err != nil {
		return fmt.Errorf("wait for another request of sandbox %s: %w", a.Sandbox, err)
	}
	defer unlock()
	pod, ok := m.get(a)
	if !ok {
		return types.NewError(types.ErrUnknownContainer, fmt.Sprintf("sandbox %s has no %s in this network", a.Sandbox, a.IfName), "")
	}
	netns, err := m.links.Open(req.Netns)
	if err != nil {
		return types.NewError(types.ErrInvalidNetNS, "CNI_NETNS can't be used", err.Error())
	}
	defer netns.Close()
	if err := m.links.Verify(ctx, netns, m.network(pod)); err != nil {
		return fmt.Errorf("pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	ports, err := m.bridge.ListPorts(ctx)
	if err != nil {
		return fmt.Errorf("look for the port of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	if !slices.ContainsFunc(ports, func(p ovs.Port) bool { return p.Name == pod.HostVeth() && p.OFPort == pod.OFPort }) {
		return fmt.Errorf("pod %s/%s: the bridge has no port %s with number %d", pod.Namespace, pod.Name, pod.HostVeth(), pod.OFPort)
	}
	return nil
}
