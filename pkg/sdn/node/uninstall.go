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
	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostnet"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/ipam"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/pods"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sysctl"
)

const (
	// formerSysctls is a file beside the CNI socket: what is below /run is lost with the machine's restart, as sysctls are.
	formerSysctls = "sysctls.json"

	// leavingMark is a file beside Open vSwitch's sockets: an Open vSwitch that is uninstalled at the same time waits while it is there.
	leavingMark = "ovsdn.leaving"

	// uninstallTime is what the agent takes for it at most; kubelet gives 60 s (deploy/base/node.yaml), some of which requests in progress take.
	uninstallTime = 30 * time.Second

	// Of that, an Open vSwitch that hangs gets so much to say which ports there are, and to remove the bridge.
	listTime   = 5 * time.Second
	bridgeTime = 15 * time.Second
)

func (c Config) sysctls() hostnet.Sysctls {
	return hostnet.Sysctls{Dir: sysctl.Dir(c.SysctlDir), Former: filepath.Join(filepath.Dir(c.CNISocket), formerSysctls)}
}

// Uninstall makes the node what it was before the agent came: no configuration and plugin for the container runtime, no interfaces of
// pods, no bridge, no firewall rules, sysctls as they were, no addresses. Pods lose their network. What is gone already is no
// error; after an error the rest is done, and it can be called again. It fails if an agent runs.
func Uninstall(ctx context.Context, cfg Config) error {
	socket, err := cniserver.Listen(cfg.CNISocket)
	if err != nil {
		return err
	}
	bridge := ovs.NewNative(bridgeName, ovs.DefaultRunDir)
	defer bridge.Close()
	err = newUninstaller(cfg, bridge).run(ctx)
	if err == nil {
		err = socket.Forget()
	}
	err = errors.Join(err, socket.Close())
	// It can't be removed where it is a mount point, or where it is /run itself.
	_ = os.Remove(filepath.Dir(cfg.CNISocket))
	return err
}

// uninstaller takes the steps, whoever holds the socket's lock for it.
type uninstaller struct {
	Config
	bridge *ovs.Native
	files  *runtimeFiles

	listTime, bridgeTime time.Duration
}

func newUninstaller(cfg Config, bridge *ovs.Native) *uninstaller {
	u := &uninstaller{Config: cfg, bridge: bridge, files: &runtimeFiles{confDir: cfg.CNIConfDir}, listTime: listTime, bridgeTime: bridgeTime}
	if cfg.CNIBinDir != "" {
		u.files.plugin = &cniserver.Plugin{Dir: cfg.CNIBinDir}
	}
	return u
}

// run goes on past errors and joins them.
func (u *uninstaller) run(ctx context.Context) error {
	var errs []error
	for _, step := range []struct {
		name string
		do   func(context.Context) error
	}{
		{"CNI configuration and plugin", func(context.Context) error { return u.files.remove() }}, // first: no pod is to start any more
		{"pods' interfaces", u.removePods},
		{"firewall", u.removeFirewall},
		{"sysctls", u.restoreSysctls},
		{"bridge", u.removeBridge},       // after what needs no Open vSwitch, which may hang
		{"addresses", u.removeAddresses}, // last: they name interfaces, if it has to be done again
	} {
		began := time.Now()
		if err := step.do(ctx); err != nil {
			errs = append(errs, fmt.Errorf("remove %s: %w", step.name, err))
			continue
		}
		klog.FromContext(ctx).Info("Removed from the node", "what", step.name, "took", time.Since(began))
	}
	return errors.Join(errs...)
}

// removePods removes the host's ends of pods' interfaces, and so both. They are known from the bridge's ports, and from the
// addresses too, should Open vSwitch not answer.
func (u *uninstaller) removePods(ctx context.Context) error {
	veths := map[string]bool{}
	leases, err := ipam.Leases(u.IPAMDir, ipamNetwork)
	if err != nil {
		return err
	}
	for _, l := range leases {
		if !l.Damaged() {
			veths[pods.Attachment{Sandbox: l.ContainerID, IfName: l.IfName}.HostVeth()] = true
		}
	}
	listing, cancel := context.WithTimeout(ctx, u.listTime)
	defer cancel()
	ports, err := u.bridge.ListPorts(listing)
	if err != nil {
		klog.FromContext(ctx).Info("Open vSwitch does not say which pods there are", "reason", err.Error()) // or there is no bridge
	}
	for _, p := range ports {
		if p.ExternalIDs[pods.IDSandbox] != "" {
			veths[p.Name] = true
		}
	}
	var errs []error
	for veth := range veths {
		errs = append(errs, pods.Kernel{}.Delete(ctx, veth))
	}
	return errors.Join(errs...)
}

// removeBridge also lets the next vswitchd start without waiting for anybody's flows. A host without Open vSwitch has no bridge, and one of
// that name that is another's stays.
func (u *uninstaller) removeBridge(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, u.bridgeTime)
	defer cancel()
	wait, err := u.bridge.RestoreWait(ctx)
	if isNoSwitch(err) && !isLink(bridgeName) && !isLink(hostnet.Tun0Name) {
		klog.FromContext(ctx).Info("No Open vSwitch runs on this host, and its interfaces are not there. If it is only stopped: start it, and uninstall again")
		return nil
	}
	if err == nil && wait.Armed && (wait.Alone || wait.None) {
		err = u.bridge.SetRestoreWait(ctx, false)
	}
	gone := u.bridge.DeleteBridge(ctx, ownBridge())
	if ovs.IsForeignBridge(gone) {
		klog.FromContext(ctx).Info("The bridge is kept", "bridge", bridgeName, "reason", gone.Error())
		gone = nil
	}
	return errors.Join(err, gone)
}

// isLink also returns true if the kernel does not say.
func isLink(name string) bool {
	_, err := netlinksafe.LinkByName(name)
	return !errors.As(err, &netlink.LinkNotFoundError{})
}

func (u *uninstaller) removeFirewall(ctx context.Context) error {
	firewalls, err := hostnet.Everywhere(hostnet.FirewallConfig{})
	if err != nil {
		return err
	}
	var errs []error
	for _, f := range firewalls {
		errs = append(errs, f.Remove(ctx))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return hostnet.RemoveVTEPs(ctx)
}

// restoreSysctls leaves them if another network is on the node already: it may rely on them.
func (u *uninstaller) restoreSysctls(ctx context.Context) error {
	log := klog.FromContext(ctx)
	if other := firstConfig(u.CNIConfDir); other != "" {
		log.Info("Sysctls stay as they are: another network is configured on this node, and may need them", "configuration", other)
		return nil
	}
	changes, err := u.sysctls().Restore()
	if len(changes) > 0 {
		log.Info("The host's settings are what they were", "changed", changes)
	}
	return err
}

func (u *uninstaller) removeAddresses(context.Context) error {
	return ipam.Remove(u.IPAMDir, ipamNetwork)
}

// arrive begins to watch whether the agent's installation is being deleted.
func (a *agent) arrive(ctx context.Context) (err error) {
	if err := removeIfThere(filepath.Join(ovs.DefaultRunDir, leavingMark)); err != nil {
		return fmt.Errorf("what an agent before left: %w", err)
	}
	a.installation, err = newInstallation(a.Namespace, a.kube, func(leaving bool) { a.leave(ctx, leaving) })
	return err
}

// leave is told when the agent's installation begins to be deleted, and marks that for an Open vSwitch that goes with it.
func (a *agent) leave(ctx context.Context, leaving bool) {
	log := klog.FromContext(ctx)
	path := filepath.Join(ovs.DefaultRunDir, leavingMark)
	var err error
	if leaving {
		log.Info("The installation is being deleted: when this agent is stopped it takes the pod network off the node", "namespace", a.Namespace)
		err = os.WriteFile(path, nil, 0o644)
	} else {
		log.Info("The installation is there: when this agent is stopped the pod network stays", "namespace", a.Namespace)
		err = removeIfThere(path)
	}
	if err != nil {
		log.Error(err, "Could not tell Open vSwitch's pod, which may not wait when it is uninstalled too")
	}
}

// uninstall is what an agent does that was stopped with its installation. The socket's lock is held.
func (a *agent) uninstall(ctx context.Context, socket *cniserver.Listener) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), uninstallTime)
	defer cancel()
	err := newUninstaller(a.Config, a.bridge).run(ctx)
	if err == nil {
		err = socket.Forget()
	}
	return errors.Join(err, removeIfThere(filepath.Join(ovs.DefaultRunDir, leavingMark)))
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
