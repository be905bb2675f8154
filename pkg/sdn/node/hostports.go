package node

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"

	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostnet"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostports"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sysctl"
)

const (
	// hostPortsDir is a directory next to the CNI socket with the host ports of pods: /run is cleared when the machine restarts, as are their rules.
	hostPortsDir = "hostports"

	// legacyIPTablesDir is a directory of the agent's image in which iptables has the legacy backend.
	legacyIPTablesDir = "/usr/lib/ovsdn/iptables-legacy"
)

func (c Config) hostPortsDir() string { return filepath.Join(filepath.Dir(c.CNISocket), hostPortsDir) }

// portmap returns the program that maps host ports, which is installed beside the plugin.
func (c Config) portmap(legacy func() bool) *hostports.Portmap {
	return &hostports.Portmap{Path: filepath.Join(filepath.Dir(c.CNIPlugin), hostports.PluginName), LegacyDir: legacyIPTablesDir, Legacy: legacy}
}

// newHostPorts creates the feature of host ports. The firewall and the pod manager are created later.
func (n *nodeNetwork) newHostPorts(ctx context.Context) {
	a := n.agent
	var err error
	n.hostPorts, err = hostports.New(hostports.Options{
		Plugin:        a.portmap(func() bool { return n.firewall.Backend() == hostnet.BackendLegacy }),
		Dir:           a.hostPortsDir(),
		VXLANPort:     n.network.VXLANPort,
		Attached:      n.attachedSandboxes,
		Holder:        n.hostPortHolder,
		SyncFirewall:  func(ctx context.Context) error { return n.firewall.SyncHostPorts(ctx) },
		RouteLoopback: func(permit bool) error { return hostnet.RouteLoopback(sysctl.Dir(a.SysctlDir), permit) },
		WarnNode:      a.reporter.WarnNode,
		WarnPod: func(namespace, name, uid, reason, message string) {
			a.reporter.WarnPod(sandbox.Pod{Namespace: namespace, Name: name, UID: uid}, reason, message)
		},
	})
	if err != nil { // those that were read work
		klog.FromContext(ctx).Error(err, "Failed to read stored host ports", "effect", "a flush of the firewall ends those host ports", "action", "delete the pods with host ports")
		a.reporter.WarnNode(eventreason.HostPortsFailed, fmt.Sprintf("%v; delete the pods with host ports", err))
	}
}

func (n *nodeNetwork) closeHostPorts(ctx context.Context) {
	if err := n.hostPorts.Close(); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to set route_localnet", "interface", hostnet.Tun0Name, "effect", "without the agent's firewall, pods reach the node's loopback")
	}
}

// hostPortHolder returns the pod in the host's network, or the Service, that declares the host port on one of the addresses; "": none.
func (n *nodeNetwork) hostPortHolder(m hostports.Mapping, addrs []netip.Addr) (string, error) {
	pod, err := hostports.HostPod(n.caches.Local.Core().V1().Pods().Informer().GetIndexer(), m)
	if err != nil {
		return "", err
	}
	if pod != "" {
		return fmt.Sprintf("pod %s in the host's network", pod), nil
	}
	service, err := n.caches.ServiceWith(m.Protocol, m.HostPort, addrs)
	if err != nil || service == "" {
		return "", err
	}
	return "Service " + service, nil
}

// maxHostPortEvents bounds the Events at the agent's start about pods without the host ports that they declare.
const maxHostPortEvents = 100

// eventReporter sends Events (*nodestatus.Reporter).
type eventReporter interface {
	WarnPod(p sandbox.Pod, reason, message string)
	WarnNode(reason, message string)
}

// reportMissingHostPorts reports the pods that declare a host port and have none, once in the agent's life: those that a version without host ports started.
func (n *nodeNetwork) reportMissingHostPorts(ctx context.Context, reporter eventReporter, attached []sandbox.Pod) {
	if n.agent.hostPortsReported {
		return
	}
	n.agent.hostPortsReported = true
	missing := n.withoutHostPorts(attached)
	if len(missing) == 0 {
		return
	}
	for _, p := range missing[:min(len(missing), maxHostPortEvents)] {
		reporter.WarnPod(p, eventreason.HostPortsMissing,
			"the pod's hostPort is not mapped, since a version without host ports started the pod; delete the pod so that it is created again")
	}
	if more := len(missing) - maxHostPortEvents; more > 0 {
		reporter.WarnNode(eventreason.HostPortsMissing, fmt.Sprintf("%d more pods of this node have a hostPort that is not mapped; delete the pods with a hostPort "+
			"that were created before the upgrade", more))
	}
	klog.FromContext(ctx).Info("Pods have host ports that are not mapped", "pods", len(missing), "action", "delete the pods")
}

// withoutHostPorts returns those of the attached pods that declare a host port and have none.
func (n *nodeNetwork) withoutHostPorts(attached []sandbox.Pod) (missing []sandbox.Pod) {
	finder := podFinder{n.caches.Local.Core().V1().Pods().Lister(), n.agent.kube}
	for _, p := range attached {
		pod := finder.Cached(p.Namespace, p.Name)
		if pod == nil || p.UID != "" && string(config.PodUID(pod)) != p.UID || len(config.HostPorts(&pod.Spec)) == 0 {
			continue
		}
		if !n.hostPorts.Has(hostports.Attachment{Sandbox: p.Sandbox, IfName: p.IfName}) {
			missing = append(missing, p)
		}
	}
	return missing
}

// attachedSandboxes returns the sandboxes that the pod manager has not detached.
func (n *nodeNetwork) attachedSandboxes() map[hostports.Attachment]bool {
	all := map[hostports.Attachment]bool{}
	for a := range n.pods.Known() {
		all[hostports.Attachment{Sandbox: a.Sandbox, IfName: a.IfName}] = true
	}
	return all
}

// releaseHostPorts deletes the host ports of an attachment whose address the pod manager will release.
func (n *nodeNetwork) releaseHostPorts(ctx context.Context, a sandbox.Attachment) error {
	return n.hostPorts.Release(ctx, hostports.Attachment{Sandbox: a.Sandbox, IfName: a.IfName})
}

// firewallHostPorts returns the host ports for the firewall.
func (n *nodeNetwork) firewallHostPorts() []hostnet.HostPort {
	var all []hostnet.HostPort
	for _, t := range n.hostPorts.Targets() {
		if p := (hostnet.HostPort{Addr: t.Addr, Protocol: t.Protocol, HostPort: t.HostPort, Port: t.Port}); t.Addr.Is4() && !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	return all
}
