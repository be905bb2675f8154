package pods

import (
	"context"
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
)

// ErrAttachmentChanged is the error code of CHECK when the attachment differs from the result of ADD. (The specification reserves codes
// from 100 for plugins.)
const ErrAttachmentChanged uint = 100

// Check compares the pod's interface, its lease, its port and its flows with those that Add created, and the runtime's prevResult with
// Add's result.
func (m *Manager) Check(ctx context.Context, req *cniserver.Request) error {
	if err := m.requireRecovered(); err != nil {
		return err
	}
	a := sandbox.Attachment{Sandbox: req.ContainerID, IfName: req.IfName}
	unlock, err := m.sandboxes.Lock(ctx, a.Sandbox)
	if err != nil {
		return fmt.Errorf("wait for another request of sandbox %s: %w", a.Sandbox, err)
	}
	defer unlock()
	pod, ok := m.get(a)
	if !ok {
		if cause, unidentified := m.unidentifiedCause(a); unidentified {
			return types.NewError(ErrAttachmentChanged, "the sandbox has no port", cause)
		}
		return types.NewError(types.ErrUnknownContainer, fmt.Sprintf("sandbox %s has no interface %s in this network", a.Sandbox, a.IfName), "")
	}
	err = m.check(ctx, req, pod)
	if err != nil && !ovs.IsUnavailable(err) && ctx.Err() == nil {
		m.events.WarnPod(pod, eventreason.NetworkCheckFailed, fmt.Sprintf("CNI CHECK of pod %s/%s failed: %v; delete the pod", pod.Namespace, pod.Name, err))
	}
	return asCNIError(err)
}

func (m *Manager) check(ctx context.Context, req *cniserver.Request, pod sandbox.Pod) error {
	if fault := m.outside(pod); fault != nil {
		return types.NewError(ErrAttachmentChanged, fmt.Sprintf("pod %s/%s has no network", pod.Namespace, pod.Name), fault.Error())
	}
	if err := m.CheckPrevResult(req, pod); err != nil {
		return err
	}
	netns, err := m.links.Open(req.Netns)
	if err != nil {
		return types.NewError(types.ErrInvalidNetNS, "invalid CNI_NETNS", err.Error())
	}
	defer netns.Close()
	ports, err := m.bridge.ListPorts(ctx)
	if err != nil {
		return fmt.Errorf("find the port of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	missing, err := m.bridge.Missing(ctx, m.flows.Expected(pod))
	if err != nil {
		return fmt.Errorf("find the flows of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	err = errors.Join(
		m.fault(pod.Attachment),
		m.links.Verify(ctx, netns, m.CheckedInterface(pod)),
		m.checkMacvlan(ctx, netns, pod),
		m.checkLeases(pod),
		checkPorts(ports, pod),
		checkFlows(missing),
	)
	if err != nil {
		return types.NewError(ErrAttachmentChanged, fmt.Sprintf("the network of pod %s/%s differs from the result of ADD", pod.Namespace, pod.Name), err.Error())
	}
	return nil
}

func (m *Manager) unidentifiedCause(a sandbox.Attachment) (cause string, unidentified bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	cause, unidentified = m.unidentified[a]
	return cause, unidentified
}

func (m *Manager) checkLeases(pod sandbox.Pod) error {
	var errs []error
	for _, addr := range pod.Addrs {
		lease, found := m.ipam.Holder(addr)
		switch {
		case !found:
			errs = append(errs, fmt.Errorf("address %s has no lease", addr))
		case lease.ContainerID != pod.Sandbox || lease.IfName != pod.IfName:
			errs = append(errs, fmt.Errorf("address %s is leased to %s of container %q", addr, lease.IfName, lease.ContainerID))
		}
	}
	return errors.Join(errs...)
}

// checkPorts checks that the pod's port exists, and that no other port has its addresses.
func checkPorts(ports []ovs.Port, pod sandbox.Pod) error {
	var errs []error
	found := false
	for _, port := range ports {
		other, err := sandbox.ParsePort(port)
		switch {
		case port.Name == pod.HostVeth():
			found = true
			errs = append(errs, checkPort(port, pod, err))
		case err == nil && other.HasAnyAddr(pod.Addrs):
			errs = append(errs, fmt.Errorf("pod %s/%s (port %s) has one of the addresses %v too", other.Namespace, other.Name, port.Name, pod.Addrs))
		}
	}
	if !found {
		errs = append(errs, fmt.Errorf("the bridge has no port %s", pod.HostVeth()))
	}
	return errors.Join(errs...)
}

func checkPort(port ovs.Port, pod sandbox.Pod, idsErr error) error {
	if idsErr != nil {
		return idsErr
	}
	var errs []error
	if port.OFPort != pod.OFPort {
		errs = append(errs, fmt.Errorf("port %s has OpenFlow port number %d, want %d", port.Name, port.OFPort, pod.OFPort))
	}
	for key, want := range pod.Port().ExternalIDs {
		if got := port.ExternalIDs[key]; got != want {
			errs = append(errs, fmt.Errorf("external_ids:%s of port %s is %q, want %q", key, port.Name, got, want))
		}
	}
	return errors.Join(errs...)
}

func checkFlows(missing []*ovs.Flow) error {
	var errs []error
	for _, flow := range missing {
		text, err := ovs.FlowText(flow)
		if err != nil {
			return err
		}
		errs = append(errs, fmt.Errorf("flow is missing on the switch: %s", text))
	}
	return errors.Join(errs...)
}
