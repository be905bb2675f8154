package node

import (
	"context"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/google/go-cmp/cmp"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostnet"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/ipam"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/linkmtu"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/pods"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

// host is a node without Kubernetes: a network namespace with an Open vSwitch, and directories.
type host struct {
	*ovstest.Switch

	config Config
	bridge *ovs.Native
}

func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{Switch: ovstest.Start(t), config: Defaults()}
	dir := t.TempDir()
	h.config.Datapath = "netdev"
	h.config.CNIConfDir, h.config.CNIBinDir = filepath.Join(dir, "net.d"), filepath.Join(dir, "bin")
	h.config.IPAMDir, h.config.CNISocket = filepath.Join(dir, "networks"), filepath.Join(h.RunDir, "ovsdn", "cni.sock")
	h.config.CNIPlugin = filepath.Join(t.TempDir(), "plugin")
	for path, content := range map[string]string{
		h.config.CNIPlugin: "program", filepath.Join(h.config.CNIBinDir, "bridge"): "another's", filepath.Join(dir, "addresses"): "of nobody",
	} {
		h.must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		h.must(t, os.WriteFile(path, []byte(content), 0o755))
	}
	h.must(t, os.MkdirAll(h.config.CNIConfDir, 0o755))
	h.must(t, os.MkdirAll(filepath.Dir(h.config.CNISocket), 0o700))
	h.bridge = ovs.NewNative(bridgeName, h.RunDir)
	t.Cleanup(h.bridge.Close)
	h.sh(t, `ip link set lo up
sysctl -qw net.ipv4.ip_forward=0 net.ipv4.conf.all.accept_redirects=0 net.ipv4.conf.all.send_redirects=1
iptables -N THEIRS; iptables -A THEIRS -j RETURN; iptables -A FORWARD -s 192.0.2.0/24 -j THEIRS
ip link add theirs type bridge; sysctl -qw net.ipv6.conf.theirs.disable_ipv6=1; ip link set theirs up; ip addr add 192.0.2.1/24 dev theirs`)
	return h
}

func (*host) must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// in runs f in the host's network namespace.
func (h *host) in(t *testing.T, f func() error) {
	t.Helper()
	h.must(t, h.NS.Do(func(ns.NetNS) error { return f() }))
}

func (h *host) sh(t *testing.T, script string) (out string) {
	t.Helper()
	h.in(t, func() error {
		text, err := exec.CommandContext(t.Context(), "sh", "-ec", script).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, text)
		}
		out = string(text)
		return nil
	})
	return out
}

// setUp does what an agent does to its host, with one pod.
func (h *host) setUp(t *testing.T) {
	t.Helper()
	cluster, services, subnet := netip.MustParsePrefix("10.128.0.0/14"), netip.MustParsePrefix("172.30.0.0/16"), netip.MustParsePrefix("10.128.2.0/23")
	network := &config.Network{
		Mode: config.ModeSubnet, ClusterNetworks: []config.ClusterNetwork{{Prefix: cluster}}, ServiceNetwork: services, VXLANPort: config.DefaultVXLANPort,
	}
	own := &config.HostSubnet{Node: "node1", HostIP: netip.MustParseAddr("192.0.2.1"), Subnets: []netip.Prefix{subnet}}
	mtu := linkmtu.MTU{Link: 1450}
	tun := hostnet.NewTun0(hostnet.Tun0Config{
		Subnets: own.Subnets, ClusterNetworks: []netip.Prefix{cluster}, ServiceNetwork: services, MTU: mtu, Sysctls: h.config.sysctls(),
	})
	h.in(t, func() error {
		return newFixture(h.bridge, h.config.Datapath, network, own, tun, mtu).ensure(t.Context())
	})
	h.in(t, func() error {
		_, err := (&agent{Config: h.config}).setUpHost(t.Context(), network, tun)
		return err
	})
	h.must(t, h.bridge.SetRestoreWait(t.Context(), true))

	addresses, err := ipam.Open(h.config.IPAMDir, ipamNetwork, own.Subnets)
	h.must(t, err)
	_, err = addresses.Allocate(t.Context(), "sandbox", "eth0")
	h.must(t, err)
	h.must(t, addresses.Close())
	veth := pods.Attachment{Sandbox: "sandbox", IfName: "eth0"}.HostVeth()
	h.sh(t, "ip link add "+veth+" type veth peer name in-the-pod; ip link set "+veth+" up")
	_, err = h.bridge.AddPort(t.Context(), ovs.Port{Name: veth, ExternalIDs: map[string]string{pods.IDSandbox: "sandbox"}})
	h.must(t, err)

	files := (&agent{Config: h.config, reporter: nil}).newRuntimeFiles()
	_, err = files.write(t.Context())
	h.must(t, err)
}

// state is what an uninstallation must leave as it was. Tables of the firewall that are empty, as its backend makes them, are nothing.
func (h *host) state(t *testing.T) []string {
	t.Helper()
	lines := strings.Split(h.sh(t, `
ip -o link | sed 's/^[0-9]*: //'
ip -o addr | sed 's/^[0-9]*: //'
ip route show table all
ip rule
iptables-save | grep -E '^(-A|:[A-Z-]+ - )' || true
cd /proc/sys/net; grep -rs . . | grep -v -E 'nf_conntrack_count|/neigh/.*/retrans' || true`), "\n")
	lines = append(lines, strings.Split(h.VSCtl(t, "list", "Bridge"), "\n")...)
	lines = append(lines, h.VSCtl(t, "get", "Open_vSwitch", ".", "other_config"))
	for _, root := range []string{filepath.Dir(h.config.CNIConfDir), filepath.Dir(h.config.CNISocket)} {
		h.must(t, filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
			lines = append(lines, path)
			return err
		}))
	}
	slices.Sort(lines)
	return lines
}

func TestUninstallationLeavesTheNodeAsItWas(t *testing.T) {
	h := newHost(t)
	before := h.state(t)
	h.setUp(t)
	for _, done := range []string{"./ipv4/ip_forward:1", ":OVSDN-MASQUERADE", "tun0: ", "in-the-pod", "10-ovsdn.conflist", "10.128.2.2", "flow-restore-wait"} {
		if !strings.Contains(strings.Join(h.state(t), "\n"), done) {
			t.Errorf("%s is not there, so its removal shows nothing", done)
		}
	}
	for _, again := range []string{"", "again: "} {
		h.in(t, func() error { return newUninstaller(h.config, h.bridge).run(t.Context()) })
		if diff := cmp.Diff(before, h.state(t)); diff != "" {
			t.Errorf("%son the node (-before +after):\n%s", again, diff)
		}
	}
}

// Another network that came first may need what the agent set.
func TestUninstallationBesideAnotherNetworkLeavesSysctls(t *testing.T) {
	h := newHost(t)
	h.setUp(t)
	h.must(t, os.WriteFile(filepath.Join(h.config.CNIConfDir, "05-other.conflist"), []byte("{}"), 0o600))
	h.in(t, func() error { return newUninstaller(h.config, h.bridge).run(t.Context()) })
	if got := h.sh(t, "sysctl -n net.ipv4.ip_forward"); got != "1\n" {
		t.Errorf("ip_forward is %s", got)
	}
	if got := filesIn(t, h.config.CNIConfDir); got != "05-other.conflist" {
		t.Errorf("there is %s", got)
	}
}

// Without Open vSwitch the bridge can't go. The rest does, and the error says what stays.
func TestUninstallationWithoutOpenVSwitchDoesTheRestAndSaysSo(t *testing.T) {
	h := newHost(t)
	h.setUp(t)
	h.StopVSwitchd(t)
	h.StopDB(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var err error
	h.in(t, func() error { err = newUninstaller(h.config, h.bridge).run(ctx); return nil })
	if !ovs.IsUnavailable(err) || !strings.Contains(err.Error(), "remove bridge") {
		t.Errorf("it says %v", err)
	}
	if got := h.sh(t, "ip -o link; iptables-save; sysctl net.ipv4.ip_forward"); strings.Contains(got, "in-the-pod") || strings.Contains(got, "OVSDN-") || !strings.Contains(got, "ip_forward = 0") {
		t.Errorf("the rest is not gone:\n%s", got)
	}
	if got := filesIn(t, h.config.CNIConfDir) + filesIn(t, h.config.CNIBinDir); got != "bridge" {
		t.Errorf("there is %s", got)
	}
}

// Else a bridge that somebody makes later would wait for flows when its vswitchd starts again, and nobody would end that.
func TestUninstallationAfterTheBridgeWentLetsOthersStart(t *testing.T) {
	h := newHost(t)
	before := h.VSCtl(t, "get", "open_vswitch", ".", "other_config")
	h.setUp(t)
	h.VSCtl(t, "del-br", bridgeName)
	await.OK(t, time.Minute, func(ctx context.Context) error {
		if wait, err := h.bridge.RestoreWait(ctx); err != nil || wait.Alone {
			return fmt.Errorf("the bridge is there yet: %+v, %w", wait, err)
		}
		return nil
	})
	h.in(t, func() error { return newUninstaller(h.config, h.bridge).run(t.Context()) })
	if after := h.VSCtl(t, "get", "open_vswitch", ".", "other_config"); after != before {
		t.Errorf("other_config is %s, was %s", after, before)
	}
}

// A bridge of that name may hold the host's uplink.
func TestUninstallationLeavesSomebodyElsesBridge(t *testing.T) {
	h := newHost(t)
	h.VSCtl(t, "add-br", bridgeName, "--", "set", "bridge", bridgeName, "datapath_type=netdev", "--", "add-port", bridgeName, "uplink", "--", "set", "interface", "uplink", "type=internal")
	row := func() string {
		return h.VSCtl(t, "list", "bridge", bridgeName) + h.VSCtl(t, "list-ports", bridgeName) + strings.Join(h.Dump(t), "\n")
	}
	before := row()
	h.in(t, func() error { return newUninstaller(h.config, h.bridge).run(t.Context()) })
	if diff := cmp.Diff(before, row()); diff != "" {
		t.Errorf("the bridge (-before +after):\n%s", diff)
	}
	if got := filesIn(t, h.config.CNIBinDir); got != "bridge" {
		t.Errorf("the rest is not gone: %s", got)
	}
}

// A host that never had an Open vSwitch has none of its bridges either.
func TestUninstallationOfAHostWithoutOpenVSwitchIsWhole(t *testing.T) {
	h := newHost(t)
	cfg := h.config
	bridge := ovs.NewNative(bridgeName, t.TempDir())
	t.Cleanup(bridge.Close)
	h.in(t, func() error { return newUninstaller(cfg, bridge).run(t.Context()) })

	h.sh(t, "ip link add tun0 type bridge")
	var err error
	h.in(t, func() error { err = newUninstaller(cfg, bridge).run(t.Context()); return nil })
	if !ovs.IsUnavailable(err) {
		t.Errorf("tun0 is there, but it says %v", err)
	}
}

// An Open vSwitch that hangs keeps nothing else on the node.
func TestUninstallationUnderAnOpenVSwitchThatHangsDoesTheRest(t *testing.T) {
	h := newHost(t)
	h.setUp(t)
	resume := h.PauseDB(t)
	defer resume()
	u := newUninstaller(h.config, h.bridge)
	u.listTime, u.bridgeTime = time.Second, time.Second
	var err error
	h.in(t, func() error { err = u.run(t.Context()); return nil })
	if err == nil || !strings.Contains(err.Error(), "remove bridge") || strings.Contains(err.Error(), "remove firewall") {
		t.Errorf("it says %v", err)
	}
	if got := h.sh(t, "ip -o link; iptables-save; sysctl net.ipv4.ip_forward"); strings.Contains(got, "in-the-pod") || strings.Contains(got, "OVSDN-") || !strings.Contains(got, "ip_forward = 0") {
		t.Errorf("the rest is not gone:\n%s", got)
	}
}

func TestUninstallationIsRefusedWhileAnAgentRuns(t *testing.T) {
	cfg := Defaults()
	cfg.CNISocket = filepath.Join(t.TempDir(), "cni.sock")
	running, err := cniserver.Listen(cfg.CNISocket)
	if err != nil {
		t.Fatal(err)
	}
	defer running.Close()
	if err := Uninstall(t.Context(), cfg); !cniserver.IsInUse(err) {
		t.Errorf("it says %v", err)
	}
}
