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

// tend puts right what somebody else broke of a living pod: its addresses' files, its port, its flows. The caller holds the
// sandbox's lock.
func (m *Manager) tend(ctx context.Context, c census, pod Pod) error {
	broken := m.fault(pod.Attachment) != nil
	inUse, err := m.claim(ctx, pod)
	if inUse != nil {
		m.remember(pod, inUse)
	}
	if inUse != nil || err != nil || !m.recovered.Load() {
		return err // the port and the flows of a recovered pod are Recover's: no flow reaches the switch before
	}
	if port, ok := c.ports[pod.HostVeth()]; ok && port.OFPort == pod.OFPort && !broken {
		return nil
	}
	return m.replug(ctx, pod)
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
	if m.fault(pod.Attachment) != nil {
		return err
	}
	klog.FromContext(ctx).Error(err, "An address is in use twice")
	m.events.WarnPod(pod, ReasonAddressInUse, err.Error())
	if other.Name != "" {
		m.events.WarnPod(other, ReasonAddressInUse, err.Error())
	}
	return err
}

// replug makes the pod's port anew if it is gone or broken, and its flows follow the port's number.
func (m *Manager) replug(ctx context.Context, pod Pod) error {
	ports, err := m.bridge.ListPorts(ctx)
	if err != nil {
		return err
	}
	at := slices.IndexFunc(ports, func(p ovs.Port) bool { return p.Name == pod.HostVeth() })
	if at >= 0 && ports[at].OFPort == pod.OFPort && m.fault(pod.Attachment) == nil {
		return nil // the census was older
	}
	if at >= 0 && ports[at].OFPort > 0 {
		pod.OFPort = ports[at].OFPort
	} else {
		port, err := m.bridge.AddPort(ctx, pod.port())
		if err != nil {
			return fmt.Errorf("make the port of pod %s/%s anew: %w", pod.Namespace, pod.Name, err)
		}
		pod.OFPort = port.OFPort
	}
	if err := m.flows.set(ctx, pod, nil); err != nil {
		return fmt.Errorf("install the flows of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	klog.FromContext(ctx).Info("Repaired the port of a pod that somebody had changed", "pod", klog.KRef(pod.Namespace, pod.Name), "ofport", pod.OFPort)
	m.remember(pod, nil)
	return nil
}
