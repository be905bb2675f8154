package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/br0"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/cnifiles"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/egressaddress"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostnet"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostports"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/installation"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/ipam"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/servicenat"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sysctl"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/veth"
)

const (
	// savedSysctlsFile is a file next to the CNI socket with the previous values of sysctls: /run is cleared when the machine restarts, as are sysctls.
	savedSysctlsFile = "sysctls.json"

	// uninstallMarker is a file next to the sockets of Open vSwitch: an Open vSwitch that is uninstalled at the same time waits while it exists.
	uninstallMarker = "ovsdn.leaving"

	// uninstallTimeout is below the agent's termination grace period of 60 s (deploy/base/node.yaml), part of which requests in progress need.
	uninstallTimeout = 30 * time.Second

	// hostPortsTimeout leaves time for the steps that follow: with iptables, portmap runs for each pod.
	hostPortsTimeout = 8 * time.Second

	// Timeouts of Open vSwitch for listing the ports and for deleting the bridge.
	listTimeout   = 5 * time.Second
	bridgeTimeout = 15 * time.Second
)

func (c Config) sysctls() hostnet.Sysctls {
	return hostnet.Sysctls{Dir: sysctl.Dir(c.SysctlDir), SavedFile: filepath.Join(filepath.Dir(c.CNISocket), savedSysctlsFile)}
}

// Uninstall removes all that the agent created on the node: the CNI configuration and plugin, interfaces of pods, the bridge, firewall rules and
// addresses. It restores sysctls. Pods lose their network. Uninstall is idempotent: it continues after an error, and can be called again. It fails if an
// agent runs.
func Uninstall(ctx context.Context, cfg Config) error {
	socket, err := cniserver.Listen(cfg.CNISocket)
	if err != nil {
		return err
	}
	bridge := native.New(br0.Name, native.DefaultRunDir)
	defer bridge.Close()
	err = newUninstaller(cfg, bridge).run(ctx)
	if err == nil {
		err = socket.RemoveLock()
	}
	err = errors.Join(err, socket.Close())
	// This fails if the directory is a mount point, or /run itself.
	_ = os.Remove(filepath.Dir(cfg.CNISocket))
	return err
}

// uninstaller runs the steps. The caller holds the lock of the CNI socket.
type uninstaller struct {
	Config
	bridge *native.Native
	files  *cnifiles.Files

	listTimeout, bridgeTimeout time.Duration
}

func newUninstaller(cfg Config, bridge *native.Native) *uninstaller {
	return &uninstaller{Config: cfg, bridge: bridge, files: cnifiles.New(cfg.fileOptions(), nil, nil), listTimeout: listTimeout, bridgeTimeout: bridgeTimeout}
}

// run runs all steps and joins their errors.
func (u *uninstaller) run(ctx context.Context) error {
	var errs []error
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"CNI configuration and plugin", func(context.Context) error { return u.files.Remove() }}, // first, so that no more pods start
		{"pods' interfaces", u.removePods},
		{"host ports", u.removeHostPorts},
		{"rules of services", servicenat.Remove},
		{"egress rules", func(context.Context) error { return os.RemoveAll(u.egressRulesDir()) }},
		{"egress IPs", egressaddress.Remove}, // before the firewall, which accepts their packets without conntrack
		{"firewall", u.removeFirewall},
		{"sysctls", u.restoreSysctls},
		{"bridge", u.removeBridge},       // after the steps without Open vSwitch, which may hang
		{"addresses", u.removeAddresses}, // last: a repeated uninstallation reads the names of interfaces from them
	} {
		start := time.Now()
		if err := step.do(ctx); err != nil {
			errs = append(errs, fmt.Errorf("remove %s: %w", step.name, err))
			continue
		}
		klog.FromContext(ctx).Info("Uninstalled component", "component", step.name, "duration", time.Since(start))
	}
	return errors.Join(errs...)
}

// removePods deletes the veth pairs of pods. It finds them by the bridge's ports and, in case Open vSwitch does not answer, by the IP leases.
func (u *uninstaller) removePods(ctx context.Context) error {
	veths := map[string]bool{}
	leases, err := ipam.Leases(u.IPAMDir, ipamNetwork)
	if err != nil {
		return err
	}
	for _, l := range leases {
		if !l.Corrupt() {
			veths[sandbox.Attachment{Sandbox: l.ContainerID, IfName: l.IfName}.HostVeth()] = true
		}
	}
	listing, cancel := context.WithTimeout(ctx, u.listTimeout)
	defer cancel()
	ports, err := u.bridge.ListPorts(listing)
	if err != nil {
		klog.FromContext(ctx).Info("Failed to list ports of the bridge; using IP leases only", "err", err.Error()) // for example without a bridge
	}
	for _, p := range ports {
		if p.ExternalIDs[sandbox.IDSandbox] != "" {
			veths[p.Name] = true
		}
	}
	var errs []error
	for name := range veths {
		errs = append(errs, veth.Links{}.Delete(ctx, name))
	}
	return errors.Join(errs...)
}

// removeBridge deletes the bridge and clears flow-restore-wait, unless other bridges need it. It does not delete another program's bridge
// of that name.
func (u *uninstaller) removeBridge(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, u.bridgeTimeout)
	defer cancel()
	wait, err := u.bridge.RestoreWait(ctx)
	if br0.IsNoSwitch(err) && !isLink(br0.Name) && !isLink(hostnet.Tun0Name) {
		klog.FromContext(ctx).Info("No Open vSwitch runs on this host and its interfaces do not exist", "action", "if Open vSwitch is only stopped: start it and uninstall again")
		return nil
	}
	if err == nil && wait.Armed && (wait.Alone || wait.None) {
		err = u.bridge.SetRestoreWait(ctx, false)
	}
	// DeleteBridge retains another program's bridge, and its exporters.
	_, exporterErr := u.bridge.EnsureExporter(ctx, nil)
	deleteErr := u.bridge.DeleteBridge(ctx, br0.Identity())
	if ovs.IsForeignBridge(deleteErr) {
		klog.FromContext(ctx).Info("Retained another program's bridge", "bridge", br0.Name, "err", deleteErr.Error())
		deleteErr = nil
	}
	return errors.Join(err, exporterErr, deleteErr)
}

// isLink returns false only if the kernel reports that the link does not exist.
func isLink(name string) bool {
	_, err := netlinksafe.LinkByName(name)
	return !errors.As(err, &netlink.LinkNotFoundError{})
}

func (u *uninstaller) removeHostPorts(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, hostPortsTimeout)
	defer cancel()
	return hostports.RemoveAll(ctx, u.portmap(nil), u.hostPortsDir())
}

func (u *uninstaller) removeFirewall(ctx context.Context) error {
	firewalls, err := hostnet.AllFirewalls(ctx, hostnet.FirewallConfig{Program: u.Firewall})
	errs := []error{err}
	for _, f := range firewalls {
		errs = append(errs, f.Remove(ctx))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return hostnet.RemoveSets(ctx)
}

// restoreSysctls restores nothing if another network is configured: it may need the sysctls.
func (u *uninstaller) restoreSysctls(ctx context.Context) error {
	log := klog.FromContext(ctx)
	if other := cnifiles.FirstConfig(u.CNIConfDir); other != "" {
		log.Info("Retained sysctls, which another configured network may need", "configuration", other)
		return nil
	}
	changes, err := u.sysctls().Restore()
	if len(changes) > 0 {
		log.Info("Restored sysctls", "changed", changes)
	}
	return err
}

func (u *uninstaller) removeAddresses(context.Context) error {
	return ipam.Remove(u.IPAMDir, ipamNetwork)
}

// watchInstallation creates the watch for the deletion of the agent's installation.
func (a *agent) watchInstallation(ctx context.Context) (err error) {
	if err := removeIfExists(filepath.Join(native.DefaultRunDir, uninstallMarker)); err != nil {
		return fmt.Errorf("delete the marker of a previous agent: %w", err)
	}
	a.installation, err = installation.New(a.Namespace, a.kube, func(deleting bool) { a.installationChanged(ctx, deleting) })
	return err
}

// installationChanged writes the marker for an Open vSwitch that is uninstalled at the same time, or deletes it.
func (a *agent) installationChanged(ctx context.Context, deleting bool) {
	log := klog.FromContext(ctx)
	path := filepath.Join(native.DefaultRunDir, uninstallMarker)
	var err error
	if deleting {
		log.Info("The installation is being deleted: the agent uninstalls the pod network when it stops", "namespace", a.Namespace)
		err = os.WriteFile(path, nil, 0o644)
	} else {
		log.Info("The installation exists again: the pod network remains when the agent stops", "namespace", a.Namespace)
		err = removeIfExists(path)
	}
	if err != nil {
		log.Error(err, "Failed to update the uninstall marker: the pod of Open vSwitch may stop before the uninstallation ends", "path", path)
	}
}

// uninstall runs when the agent stops after the deletion of its installation. The caller holds the lock of the socket.
func (a *agent) uninstall(ctx context.Context, socket *cniserver.Listener) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), uninstallTimeout)
	defer cancel()
	err := newUninstaller(a.Config, a.bridge).run(ctx)
	if err == nil {
		err = socket.RemoveLock()
	}
	return errors.Join(err, removeIfExists(filepath.Join(native.DefaultRunDir, uninstallMarker)))
}

func removeIfExists(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
