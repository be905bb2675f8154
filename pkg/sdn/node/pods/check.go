package pods

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// ErrNotAsMade is the code of CHECK when the attachment is not as ADD made it. (The specification leaves codes from 100 to plugins.)
const ErrNotAsMade uint = 100

// Check compares the attachment with what Add made: the pod's interface, the address's file, the port and the flows. The
// result that the runtime remembers must be Add's too.
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
		if cause, unidentified := m.whyUnidentified(a); unidentified {
			return types.NewError(ErrNotAsMade, "the sandbox has no port", cause)
		}
		return types.NewError(types.ErrUnknownContainer, fmt.Sprintf("sandbox %s has no %s in this network", a.Sandbox, a.IfName), "")
	}
	err = m.check(ctx, req, pod)
	if err != nil && !ovs.IsUnavailable(err) && ctx.Err() == nil {
		m.events.WarnPod(pod, ReasonCheckFailed, err.Error())
	}
	return asCNIError(err)
}

func (m *Manager) check(ctx context.Context, req *cniserver.Request, pod Pod) error {
	if err := m.checkPrevResult(req, pod); err != nil {
		return err
	}
	netns, err := m.links.Open(req.Netns)
	if err != nil {
		return types.NewError(types.ErrInvalidNetNS, "CNI_NETNS can't be used", err.Error())
	}
	defer netns.Close()
	ports, err := m.bridge.ListPorts(ctx)
	if err != nil {
		return fmt.Errorf("look for the port of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	missing, err := m.bridge.Missing(ctx, m.flows.want(pod))
	if err != nil {
		return fmt.Errorf("look for the flows of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	err = errors.Join(
		m.fault(pod.Attachment),
		m.links.Verify(ctx, netns, m.network(pod)),
		m.checkLeases(pod),
		checkPorts(ports, pod),
		checkFlows(missing),
	)
	if err != nil {
		return types.NewError(ErrNotAsMade, fmt.Sprintf("the network of pod %s/%s is not as it was made", pod.Namespace, pod.Name), err.Error())
	}
	return nil
}

// checkPrevResult compares the runtime's memory with ours. Runtimes of CNI 0.4.0 on must give it.
func (m *Manager) checkPrevResult(req *cniserver.Request, pod Pod) error {
	config, err := cniserver.ParseConfig(req.Config)
	if err != nil {
		return err
	}
	if config.RawPrevResult == nil {
		return types.NewError(types.ErrInvalidNetworkConfig, "CHECK needs the result of ADD: prevResult is missing", "")
	}
	if hasNull(config.RawPrevResult) { // the conversions between versions would panic
		return types.NewError(types.ErrDecodingFailure, "prevResult does not parse", "a list in it has null for an element")
	}
	if err := version.ParsePrevResult(&config.PluginConf); err != nil {
		return types.NewError(types.ErrDecodingFailure, "prevResult does not parse", err.Error())
	}
	prev, err := current.NewResultFromResult(config.PrevResult)
	if err != nil {
		return types.NewError(types.ErrDecodingFailure, "prevResult does not parse", err.Error())
	}
	if pod.Netns == "" { // a rebuilt pod without an alias, or whose alias had no room for the path
		pod.Netns = req.Netns
	}
	// Plugins behind this one may have added interfaces, addresses and routes.
	made := m.result(pod)
	var lies []error
	for _, ip := range made.IPs {
		if !slices.ContainsFunc(prev.IPs, func(p *current.IPConfig) bool { return p.Address.String() == ip.Address.String() }) {
			lies = append(lies, fmt.Errorf("address %s is not in it", &ip.Address))
		}
	}
	for _, i := range made.Interfaces {
		if !slices.ContainsFunc(prev.Interfaces, func(p *current.Interface) bool {
			return p.Name == i.Name && p.Sandbox == i.Sandbox && p.Mac == i.Mac
		}) {
			lies = append(lies, fmt.Errorf("interface %s (MAC %q, sandbox %q) is not in it", i.Name, i.Mac, i.Sandbox))
		}
	}
	if len(lies) > 0 {
		return types.NewError(types.ErrInvalidNetworkConfig,
			fmt.Sprintf("prevResult is not what ADD answered for pod %s/%s", pod.Namespace, pod.Name), errors.Join(lies...).Error())
	}
	return nil
}

// hasNull tells whether a list anywhere in the JSON value has null for an element.
func hasNull(value any) bool {
	switch value := value.(type) {
	case map[string]any:
		return slices.ContainsFunc(slices.Collect(maps.Values(value)), hasNull)
	case []any:
		return slices.Contains(value, nil) || slices.ContainsFunc(value, hasNull)
	}
	return false
}

func (m *Manager) whyUnidentified(a Attachment) (cause string, unidentified bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	cause, unidentified = m.unidentified[a]
	return cause, unidentified
}

func (m *Manager) checkLeases(pod Pod) error {
	var errs []error
	for _, addr := range pod.Addrs {
		lease, found := m.ipam.Holder(addr)
		switch {
		case !found:
			errs = append(errs, fmt.Errorf("address %s is not marked as taken", addr))
		case lease.ContainerID != pod.Sandbox || lease.IfName != pod.IfName:
			errs = append(errs, fmt.Errorf("address %s is marked as taken by %s of container %q", addr, lease.IfName, lease.ContainerID))
		}
	}
	return errors.Join(errs...)
}

// checkPorts looks for the pod's port, and for its addresses in others.
func checkPorts(ports []ovs.Port, pod Pod) error {
	var errs []error
	found := false
	for _, port := range ports {
		other, err := podOf(port)
		switch {
		case port.Name == pod.HostVeth():
			found = true
			errs = append(errs, checkPort(port, pod, err))
		case err == nil && other.hasAny(pod.Addrs):
			errs = append(errs, fmt.Errorf("pod %s/%s (port %s) has an address of %v too", other.Namespace, other.Name, port.Name, pod.Addrs))
		}
	}
	if !found {
		errs = append(errs, fmt.Errorf("the bridge has no port %s", pod.HostVeth()))
	}
	return errors.Join(errs...)
}

func checkPort(port ovs.Port, pod Pod, damage error) error {
	if damage != nil {
		return damage
	}
	var errs []error
	if port.OFPort != pod.OFPort {
		errs = append(errs, fmt.Errorf("port %s has number %d, not %d", port.Name, port.OFPort, pod.OFPort))
	}
	for key, want := range pod.port().ExternalIDs {
		if got := port.ExternalIDs[key]; got != want {
			errs = append(errs, fmt.Errorf("external_ids:%s of port %s is %q, not %q", key, port.Name, got, want))
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
		errs = append(errs, fmt.Errorf("the switch lacks the flow %s", text))
	}
	return errors.Join(errs...)
}
