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
	"github.com/vishvananda/netlink"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/br0"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/cnifiles"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostnet"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/ipam"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/linkmtu"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/ovstest"
	"github.com/ovsdn/ovsdn/test/tier"
)

// host is a node without Kubernetes: a network namespace with an Open vSwitch, and directories.
type host struct {
	*ovstest.Switch

	config Config
	bridge *native.Native

	balancesServices bool // --service-proxy=ovs
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
		h.config.CNIPlugin: "program", filepath.Join(h.config.CNIBinDir, "bridge"): "other", filepath.Join(dir, "addresses"): "other",
	} {
		h.must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		h.must(t, os.WriteFile(path, []byte(content), 0o755))
	}
	h.must(t, os.MkdirAll(h.config.CNIConfDir, 0o755))
	h.must(t, os.MkdirAll(filepath.Dir(h.config.CNISocket), 0o700))
	h.in(t, func() error { return netlink.IpsetCreate("THEIRS", "hash:ip", netlink.IpsetCreateOptions{}) })
	h.bridge = native.New(br0.Name, h.RunDir)
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

// setUpHost sets up the bridge and the host, as an agent does.
func (h *host) setUpHost(t *testing.T) *config.HostSubnet {
	t.Helper()
	cluster, services, subnet := netip.MustParsePrefix("10.128.0.0/14"), netip.MustParsePrefix("172.30.0.0/16"), netip.MustParsePrefix("10.128.2.0/23")
	network := &config.Network{
		Mode: config.ModeSubnet, ClusterNetworks: []config.ClusterNetwork{{Prefix: cluster}}, ServiceNetwork: services, VXLANPort: config.DefaultVXLANPort,
	}
	hostSubnet := &config.HostSubnet{Node: "node1", HostIP: netip.MustParseAddr("192.0.2.1"), Subnets: []netip.Prefix{subnet}}
	mtu := linkmtu.MTU{Link: 1450}
	tun0 := hostnet.Tun0Config{Subnets: hostSubnet.Subnets, ClusterNetworks: []netip.Prefix{cluster}, ServiceNetwork: services, MTU: mtu, Sysctls: h.config.sysctls()}
	if h.balancesServices {
		tun0.ServiceNextHop, tun0.ServiceNextHopMAC, tun0.ServiceOutside = pipeline.HairpinNode(), config.MAC(pipeline.HairpinNode()), pipeline.HairpinOutside()
	}
	tun := hostnet.NewTun0(tun0)
	h.in(t, func() error {
		return br0.New(h.bridge, h.config.Datapath, network, hostSubnet, tun, mtu).Ensure(t.Context())
	})
	n := &nodeNetwork{agent: &agent{Config: h.config}, network: network, hostSubnet: hostSubnet, tun0: tun, node: pipeline.Node{
		ClusterNetworks: []netip.Prefix{cluster}, BalancesServices: h.balancesServices,
	}}
	h.in(t, func() error { return n.setUpHost(t.Context()) })
	return hostSubnet
}

// setUp sets the host up as an agent does, with one pod.
func (h *host) setUp(t *testing.T) {
	t.Helper()
	hostSubnet := h.setUpHost(t)
	h.must(t, h.bridge.SetRestoreWait(t.Context(), true))
	h.must(t, os.MkdirAll(h.config.egressRulesDir(), 0o700))
	h.must(t, os.WriteFile(filepath.Join(h.config.egressRulesDir(), "tenant.json"), nil, 0o600))

	addresses, err := ipam.Open(h.config.IPAMDir, ipamNetwork, hostSubnet.Subnets)
	h.must(t, err)
	_, err = addresses.Allocate(t.Context(), "sandbox", "eth0")
	h.must(t, err)
	h.must(t, addresses.Close())
	veth := sandbox.Attachment{Sandbox: "sandbox", IfName: "eth0"}.HostVeth()
	h.sh(t, "ip link add "+veth+" type veth peer name in-the-pod; ip link set "+veth+" up")
	_, err = h.bridge.AddPort(t.Context(), ovs.Port{Name: veth, ExternalIDs: map[string]string{sandbox.IDSandbox: "sandbox"}})
	h.must(t, err)

	files := cnifiles.New(h.config.fileOptions(), func(_ string, err error) { t.Error(err) }, func(string, string, string) {})
	files.Sync(t.Context())
	h.must(t, files.Healthy())
}

// state returns the host's state that an uninstallation must restore, without empty tables of the firewall.
func (h *host) state(t *testing.T) []string {
	t.Helper()
	lines := strings.Split(h.sh(t, `
ip -o link | sed 's/^[0-9]*: //'
ip -o addr | sed 's/^[0-9]*: //'
ip route show table all
ip rule
ip neigh show nud permanent
iptables-save | grep -E '^(-A|:[A-Z-]+ - )' || true
cd /proc/sys/net; grep -rs . . | grep -v -E 'nf_conntrack_count|/neigh/.*/retrans' || true`), "\n")
	lines = append(lines, strings.Split(h.VSCtl(t, "list", "Bridge"), "\n")...)
	h.in(t, func() error {
		sets, err := netlink.IpsetListAll()
		for _, set := range sets {
			lines = append(lines, "ipset "+set.SetName)
		}
		return err
	})
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

func TestUninstall(t *testing.T) {
	tier.Parallel(t)
	t.Run("service proxy on the host", func(t *testing.T) { testUninstall(t, newHost(t)) })
	t.Run("service proxy in the switch", func(t *testing.T) {
		h := newHost(t)
		h.balancesServices = true
		testUninstall(t, h, "172.30.0.0/16 via 169.254.0.11", "169.254.0.11 dev tun0 lladdr", "-j REJECT", "-s 169.254.0.11/32 ! -o tun0")
	})
}

// testUninstall checks that the set-up creates all that an agent creates, and more, and that an uninstallation removes it.
func testUninstall(t *testing.T, h *host, more ...string) {
	before := h.state(t)
	h.setUp(t)
	created := []string{"./ipv4/ip_forward:1", ":OVSDN-MASQUERADE", "ipset OVSDN-VTEPS", "tun0: ", "in-the-pod", "10-ovsdn.conflist", "10.128.2.2", "flow-restore-wait"}
	for _, want := range append(created, more...) {
		if !strings.Contains(strings.Join(h.state(t), "\n"), want) {
			t.Errorf("the set-up did not create %s", want)
		}
	}
	for _, again := range []string{"", "again: "} {
		h.in(t, func() error { return newUninstaller(h.config, h.bridge).run(t.Context()) })
		if diff := cmp.Diff(before, h.state(t)); diff != "" {
			t.Errorf("%son the node (-before +after):\n%s", again, diff)
		}
	}
}

// Another network may need the sysctls that the agent set.
func TestUninstall_otherNetwork(t *testing.T) {
	tier.Parallel(t)
	h := newHost(t)
	h.setUp(t)
	h.must(t, os.WriteFile(filepath.Join(h.config.CNIConfDir, "05-other.conflist"), []byte("{}"), 0o600))
	h.in(t, func() error { return newUninstaller(h.config, h.bridge).run(t.Context()) })
	if got := h.sh(t, "sysctl -n net.ipv4.ip_forward"); got != "1\n" {
		t.Errorf("ip_forward is %s", got)
	}
	if got := listDir(t, h.config.CNIConfDir); got != "05-other.conflist" {
		t.Errorf("got files %s", got)
	}
}

// Without Open vSwitch all but the bridge is removed, and the error names the bridge.
func TestUninstall_switchStopped(t *testing.T) {
	tier.Parallel(t)
	h := newHost(t)
	h.setUp(t)
	h.StopVSwitchd(t)
	h.StopDB(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var err error
	h.in(t, func() error { err = newUninstaller(h.config, h.bridge).run(ctx); return nil })
	if !ovs.IsUnavailable(err) || !strings.Contains(err.Error(), "remove bridge") {
		t.Errorf("got error %v", err)
	}
	if got := h.sh(t, "ip -o link; iptables-save; sysctl net.ipv4.ip_forward"); strings.Contains(got, "in-the-pod") || strings.Contains(got, "OVSDN-") || !strings.Contains(got, "ip_forward = 0") {
		t.Errorf("got remains on the host:\n%s", got)
	}
	if got := listDir(t, h.config.CNIConfDir) + listDir(t, h.config.CNIBinDir); got != "bridge" {
		t.Errorf("got files %s", got)
	}
}

// flow-restore-wait is cleared although the bridge was deleted before: else another bridge would get no flows after a restart of vswitchd.
func TestUninstall_bridgeDeletedBefore(t *testing.T) {
	tier.Parallel(t)
	h := newHost(t)
	before := h.VSCtl(t, "get", "open_vswitch", ".", "other_config")
	h.setUp(t)
	h.VSCtl(t, "del-br", br0.Name)
	await.OK(t, 90*time.Second, func(ctx context.Context) error {
		if wait, err := h.bridge.RestoreWait(ctx); err != nil || wait.Alone {
			return fmt.Errorf("the bridge still exists: %+v, %w", wait, err)
		}
		return nil
	})
	h.in(t, func() error { return newUninstaller(h.config, h.bridge).run(t.Context()) })
	if after := h.VSCtl(t, "get", "open_vswitch", ".", "other_config"); after != before {
		t.Errorf("other_config is %s, was %s", after, before)
	}
}

// Another program's bridge of that name may have the host's uplink.
func TestUninstall_otherBridge(t *testing.T) {
	tier.Parallel(t)
	h := newHost(t)
	h.VSCtl(t, "add-br", br0.Name, "--", "set", "bridge", br0.Name, "datapath_type=netdev", "--", "add-port", br0.Name, "uplink", "--", "set", "interface", "uplink", "type=internal")
	row := func() string {
		return h.VSCtl(t, "list", "bridge", br0.Name) + h.VSCtl(t, "list-ports", br0.Name) + strings.Join(h.Dump(t), "\n")
	}
	before := row()
	h.in(t, func() error { return newUninstaller(h.config, h.bridge).run(t.Context()) })
	if diff := cmp.Diff(before, row()); diff != "" {
		t.Errorf("the bridge (-before +after):\n%s", diff)
	}
	if got := listDir(t, h.config.CNIBinDir); got != "bridge" {
		t.Errorf("got plugins %s, want bridge only", got)
	}
}

// A host that never had Open vSwitch has no bridge to remove.
func TestUninstall_switchNeverInstalled(t *testing.T) {
	tier.Parallel(t)
	h := newHost(t)
	cfg := h.config
	bridge := native.New(br0.Name, t.TempDir())
	t.Cleanup(bridge.Close)
	h.in(t, func() error { return newUninstaller(cfg, bridge).run(t.Context()) })

	h.sh(t, "ip link add tun0 type bridge")
	var err error
	h.in(t, func() error { err = newUninstaller(cfg, bridge).run(t.Context()); return nil })
	if !ovs.IsUnavailable(err) {
		t.Errorf("got %v while tun0 exists, want an unavailable error", err)
	}
}

func TestUninstall_switchHangs(t *testing.T) {
	tier.Parallel(t)
	h := newHost(t)
	h.setUp(t)
	resume := h.PauseDB(t)
	defer resume()
	u := newUninstaller(h.config, h.bridge)
	u.listTimeout, u.bridgeTimeout = time.Second, time.Second
	var err error
	h.in(t, func() error { err = u.run(t.Context()); return nil })
	if err == nil || !strings.Contains(err.Error(), "remove bridge") || strings.Contains(err.Error(), "remove firewall") {
		t.Errorf("got error %v", err)
	}
	if got := h.sh(t, "ip -o link; iptables-save; sysctl net.ipv4.ip_forward"); strings.Contains(got, "in-the-pod") || strings.Contains(got, "OVSDN-") || !strings.Contains(got, "ip_forward = 0") {
		t.Errorf("got remains on the host:\n%s", got)
	}
}

func TestUninstall_agentRuns(t *testing.T) {
	cfg := Defaults()
	cfg.CNISocket = filepath.Join(t.TempDir(), "cni.sock")
	running, err := cniserver.Listen(cfg.CNISocket)
	if err != nil {
		t.Fatal(err)
	}
	defer running.Close()
	if err := Uninstall(t.Context(), cfg); !cniserver.IsInUse(err) {
		t.Errorf("got error %v", err)
	}
}

// TestUninstallMarker_manifest: the containers of Open vSwitch wait for the file by its name.
func TestUninstallMarker_manifest(t *testing.T) {
	const manifest = "../../../deploy/components/ovs/ovs.yaml"
	content, err := os.ReadFile(manifest)
	if err != nil {
		t.Fatal(err)
	}
	if want := "/openvswitch/" + uninstallMarker + " "; !strings.Contains(string(content), want) {
		t.Errorf("%s does not wait for %s", manifest, want)
	}
}

func listDir(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}
