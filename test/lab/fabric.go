package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"runtime"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/test/lab/machine"
)

// fabricBridge joins all machines. It is in the control plane's network namespace.
const fabricBridge = "ul0"

// uplink is a machine's interface on the fabric.
const uplink = "eth0"

// netnsName is what a machine's network namespace is called. The control plane's is the fabric itself.
func netnsName(lab, name string) string {
	if name == ControlPlane {
		name = "fabric"
	}
	return "ovsdn-" + lab + "-" + name
}

// ensureFabric makes the namespace with the bridge.
func (l *Lab) ensureFabric() error {
	if err := ensureNetNS(netnsName(l.name, ControlPlane)); err != nil {
		return err
	}
	return l.inFabric(func() error {
		if _, err := netlinksafe.LinkByName(fabricBridge); err == nil {
			return nil
		}
		bridge := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: fabricBridge, HardwareAddr: macOf(controlPlaneAddr())}}
		if err := netlink.LinkAdd(bridge); err != nil {
			return fmt.Errorf("make the fabric's bridge: %w", err)
		}
		return nil
	})
}

// attach re-creates a machine's network namespace, with an interface on the fabric that is down and has no address.
func (l *Lab) attach(name string, addr netip.Addr) error {
	if err := l.detach(name); err != nil {
		return err
	}
	netns := netnsName(l.name, name)
	if err := ensureNetNS(netns); err != nil {
		return err
	}
	inside, err := ns.GetNS(filepath.Join(machine.NetNSDir, netns))
	if err != nil {
		return fmt.Errorf("open the network namespace %s: %w", netns, err)
	}
	defer inside.Close()
	return l.inFabric(func() error {
		bridge, err := netlinksafe.LinkByName(fabricBridge)
		if err != nil {
			return fmt.Errorf("find the fabric's bridge: %w", err)
		}
		port := portName(name)
		veth := &netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: port, MasterIndex: bridge.Attrs().Index},
			PeerName:  uplink, PeerHardwareAddr: macOf(addr), PeerNamespace: netlink.NsFd(inside.Fd()),
		}
		if err := netlink.LinkAdd(veth); err != nil {
			return fmt.Errorf("connect %s to the fabric: %w", name, err)
		}
		if err := disableTXChecksum(port); err != nil {
			return fmt.Errorf("connect %s to the fabric: %w", name, err)
		}
		if err := netlink.LinkSetUp(veth); err != nil {
			return fmt.Errorf("connect %s to the fabric: %w", name, err)
		}
		return nil
	})
}

// disableTXChecksum has the kernel write checksums into packets to the machine, as a wire would need. A veth
// passes them on unwritten, and Open vSwitch's userspace datapath would hand them to receivers that then drop them.
func disableTXChecksum(port string) error {
	tool, err := ethtool.NewEthtool()
	if err != nil {
		return err
	}
	defer tool.Close()
	return tool.Change(port, map[string]bool{"tx-checksum-ip-generic": false})
}

// detach removes a machine's network namespace and its interface on the fabric, if they exist.
func (l *Lab) detach(name string) error {
	err := l.inFabric(func() error {
		port, err := netlinksafe.LinkByName(portName(name))
		if errors.As(err, &netlink.LinkNotFoundError{}) {
			return nil
		}
		if err != nil {
			return err
		}
		return netlink.LinkDel(port)
	})
	return errors.Join(err, removeNetNS(netnsName(l.name, name)))
}

func portName(name string) string { return "v-" + name }

// macOf gives every machine the same MAC each time it starts, so that neighbours need not unlearn it.
func macOf(addr netip.Addr) net.HardwareAddr {
	bytes := addr.As4()
	return append(net.HardwareAddr{0x02, 0x00}, bytes[:]...)
}

func (l *Lab) inFabric(do func() error) error {
	return ns.WithNetNSPath(filepath.Join(machine.NetNSDir, netnsName(l.name, ControlPlane)), func(ns.NetNS) error { return do() })
}

// ensureNetNS makes a network namespace that ip-netns(8) knows by the name.
func ensureNetNS(name string) error {
	path := filepath.Join(machine.NetNSDir, name)
	if ns.IsNSorErr(path) == nil {
		return nil
	}
	if err := errors.Join(os.MkdirAll(machine.NetNSDir, 0o755), shareNetNSDir()); err != nil {
		return fmt.Errorf("make the network namespace %s: %w", name, err)
	}
	if err := os.WriteFile(path, nil, 0o444); err != nil && !errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("make the network namespace %s: %w", name, err)
	}
	made := make(chan error)
	go func() {
		// The thread ends with this goroutine, since it is in the wrong namespace.
		runtime.LockOSThread()
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			made <- err
			return
		}
		made <- unix.Mount("/proc/thread-self/ns/net", path, "", unix.MS_BIND, "")
	}()
	if err := <-made; err != nil {
		return fmt.Errorf("make the network namespace %s: %w", name, err)
	}
	return nil
}

// shareNetNSDir makes the folder of network namespaces a shared mount, as ip-netns(8) does. Otherwise the first `ip netns add` of another program would mount the folder
// over itself: the namespaces that it has by then remain mounted below, and can't be removed (EBUSY).
func shareNetNSDir() error {
	share := func() error { return unix.Mount("", machine.NetNSDir, "none", unix.MS_SHARED|unix.MS_REC, "") }
	err := share()
	if !errors.Is(err, unix.EINVAL) { // EINVAL: it is no mount
		return err
	}
	if err := unix.Mount(machine.NetNSDir, machine.NetNSDir, "none", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	return share()
}

func removeNetNS(name string) error {
	path := filepath.Join(machine.NetNSDir, name)
	// EINVAL: a file that nothing is mounted on, left by an ensureNetNS that was killed.
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount the network namespace %s: %w", name, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the network namespace %s: %w", name, err)
	}
	return nil
}

// netNSNames returns the lab's network namespaces on the machine.
func netNSNames(lab string) ([]string, error) {
	entries, err := os.ReadDir(machine.NetNSDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list the network namespaces: %w", err)
	}
	var names []string
	for _, e := range entries {
		if labOfNetNS(e.Name()) == lab {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// labOfNetNS returns the name of the lab that has a network namespace of that name, or nothing if none has.
func labOfNetNS(name string) string {
	m := regexp.MustCompile("^ovsdn-(.+)-(fabric|outside|node[0-9]+)$").FindStringSubmatch(name)
	if m == nil {
		return ""
	}
	return m[1]
}
