package hostnet

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"k8s.io/klog/v2/ktesting"

	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/tier"
)

func TestMain(m *testing.M) { await.VerifyTestMain(m) }

// inNetNS moves the test into a new network namespace with lo up, until the test ends. Tests mostly wait for iptables: those in namespaces run in parallel.
func inNetNS(t *testing.T) ns.NetNS {
	t.Helper()
	tier.Parallel(t)
	return aloneInNetNS(t)
}

// aloneInNetNS is inNetNS for a test that changes more than its namespace.
func aloneInNetNS(t *testing.T) ns.NetNS {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	runtime.LockOSThread()
	before, err := ns.GetCurrentNS()
	must(t, err)
	netns := newNetNS(t)
	must(t, netns.Set())
	t.Cleanup(func() {
		if err := before.Set(); err != nil {
			t.Errorf("leave the network namespace: %v", err)
			return // the thread stays locked, and ends with the test
		}
		before.Close()
		runtime.UnlockOSThread()
	})
	return netns
}

// writeProgram writes a script. A process that another test forks in the meantime would inherit the open file, which the kernel then refuses to run (ETXTBSY).
func writeProgram[T string | []byte](t *testing.T, path string, script T) {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	must(t, os.WriteFile(path, []byte(script), 0o755))
}

func newNetNS(t *testing.T) ns.NetNS {
	t.Helper()
	netns, err := ns.TempNetNS()
	must(t, err)
	t.Cleanup(func() { netns.Close() })
	must(t, netns.Do(func(ns.NetNS) error {
		return netlink.LinkSetUp(&netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: "lo"}})
	}))
	return netns
}

// background runs f in the namespace until the test ends.
func background(t *testing.T, netns ns.NetNS, f func(context.Context)) {
	t.Helper()
	_, ctx := ktesting.NewTestContext(t)
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := netns.Set(); err != nil {
			done <- err
			return
		}
		f(ctx)
		done <- nil
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// eventually waits until the condition is true, at most a minute.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	await.OK(t, 90*time.Second, func(context.Context) error {
		if !condition() {
			return errors.New(what)
		}
		return nil
	})
}

// sh runs a command and returns what it prints.
func sh(t *testing.T, command string) string {
	t.Helper()
	out, err := exec.Command("sh", "-ec", command).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
	return string(out)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantError checks that the error contains all parts.
func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("got no error, want one with %q", parts)
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("got error %v, want one with %q", err, p)
		}
	}
}

func prefixes(s ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, p := range s {
		all = append(all, netip.MustParsePrefix(p))
	}
	return all
}

// addInterface creates a tap interface and sets it up. In OVS's userspace datapath tun0 is a tap, too. mac can be nil.
func addInterface(t *testing.T, name string, mac net.HardwareAddr, addrs ...string) netlink.Link {
	t.Helper()
	link := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: name}, Mode: netlink.TUNTAP_MODE_TAP}
	must(t, netlink.LinkAdd(link))
	if mac != nil {
		must(t, netlink.LinkSetHardwareAddr(link, mac))
	}
	must(t, netlink.LinkSetUp(link))
	for _, a := range addrs {
		addr, err := netlink.ParseAddr(a)
		must(t, err)
		must(t, netlink.AddrAdd(link, addr))
	}
	return link
}
