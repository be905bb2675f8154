package pods

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/ipam"
)

// tend repairs changes by other programs to a living pod: the alias of its host veth, the files of its addresses, its port, its flows.
// The caller holds the sandbox's lock.
func (m *Manager) tend(ctx context.Context, c census, pod Pod) error {
	broken := m.fault(pod.Attachment) != nil
	if err := m.renewAlias(ctx, c, pod); err != nil {
		return err
	}
	inUse, err := m.claim(ctx, pod)
	if inUse != nil {
		m.remember(pod, inUse)
	}
	if inUse != nil || err != nil || !m.recovered.Load() {
		return err // the port and the flows of a recovered pod are Recover's: no flow reaches the switch before
	}
	if port, ok := c.ports[pod.HostVeth()]; ok && isPortOf(port, pod) && !broken {
		return nil
	}
	return m.replug(ctx, pod)
}

// renewAlias writes the alias of a pod that an earlier version attached, or of which the alias was changed.
func (m *Manager) renewAlias(ctx context.Context, c census, pod Pod) error {
	alias := pod.alias()
	if have, ok := c.aliased[pod.HostVeth()]; alias == "" || ok && have.alias() == alias {
		return nil
	}
	if err := m.links.SetAlias(ctx, pod.HostVeth(), alias); err != nil {
		return fmt.Errorf("renew the alias of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// isPortOf reports whether the port has the pod's number and external_ids.
func isPortOf(port ovs.Port, pod Pod) bool {
	return port.OFPort == pod.OFPort && hasIDsOf(port, pod)
}

// hasIDsOf reports whether the port has the pod's external_ids. Other keys are those of other programs.
func hasIDsOf(port ovs.Port, pod Pod) bool {
	for key, want := range pod.port().ExternalIDs {
		if port.ExternalIDs[key] != want {
			return false
		}
	}
	return true
}

// claim marks the living pod's addresses as taken, as they should be already. When another pod has one of them, both are told, and
// inUse says so.
func (m *Manager) claim(ctx context.Context, pod Pod) (inUse, err error) {
	var twice, errs []error
	for _, addr := range pod.Addrs {
		err := m.ipam.Reserve(ctx, addr, pod.Sandbox, pod.IfName)
		var conflict *ipam.ConflictError
		switch {
		case err == nil:
		case errors.As(err, &conflict):
			twice = append(twice, m.reportConflict(ctx, pod, conflict))
		case ctx.Err() != nil:
			return nil, err
		default:
			errs = append(errs, &diskError{fmt.Errorf("mark %s as taken by pod %s/%s: %w", addr, pod.Namespace, pod.Name, err)})
		}
	}
	return errors.Join(twice...), errors.Join(errs...)
}

// reportConflict tells both pods of it, once.
func (m *Manager) reportConflict(ctx context.Context, pod Pod, c *ipam.ConflictError) error {
	other, _ := m.get(Attachment{c.ContainerID, c.IfName})
	err := fmt.Errorf("pod %s/%s and pod %s/%s (sandbox %s) have one address, delete either: %w",
		pod.Namespace, pod.Name, other.Namespace, other.Name, other.Sandbox, c)
	var reported *ipam.ConflictError
	if errors.As(m.fault(pod.Attachment), &reported) {
		return err
	}
	klog.FromContext(ctx).Error(err, "An address is in use twice")
	m.events.WarnPod(pod, ReasonAddressInUse, err.Error())
	if other.Name != "" {
		m.events.WarnPod(other, ReasonAddressInUse, err.Error())
	}
	return err
}

// replug adds the pod's port again if it was deleted or differs. The pod's flows follow the port's number.
func (m *Manager) replug(ctx context.Context, pod Pod) error {
	ports, err := m.bridge.ListPorts(ctx)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(ports, func(p ovs.Port) bool { return p.Name == pod.HostVeth() })
	fault := m.fault(pod.Attachment)
	if at >= 0 && isPortOf(ports[at], pod) && fault == nil {
		return nil // the census was older
	}
	if fault != nil {
		// The flows may not be installed yet: get what they depend on first.
		if err := m.flows.ready(ctx, pod.Namespace); err != nil {
			return fmt.Errorf("look up what the flows of pod %s/%s depend on: %w", pod.Namespace, pod.Name, err)
		}
	}
	deleted := at < 0
	if at >= 0 && ports[at].OFPort > 0 && hasIDsOf(ports[at], pod) {
		pod.OFPort = ports[at].OFPort
	} else {
		number, err := m.addPortAgain(ctx, pod)
		if err != nil {
			return fmt.Errorf("add the port of pod %s/%s again: %w", pod.Namespace, pod.Name, err)
		}
		pod.OFPort = number
	}
	if err := m.flows.set(ctx, pod, nil); err != nil {
		return fmt.Errorf("install the flows of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	klog.FromContext(ctx).Info("Repaired the port of a pod", "pod", klog.KRef(pod.Namespace, pod.Name), "ofport", pod.OFPort)
	m.remember(pod, nil)
	switch {
	case errors.Is(fault, errPortLost):
		m.reportRebuilt(ctx, []Pod{pod})
	case deleted:
		m.mu.Lock()
		m.rebuilt = append(m.rebuilt, pod)
		m.mu.Unlock()
	}
	return nil
}
