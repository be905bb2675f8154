package lab

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/ovsdn/ovsdn/test/lab/components"
	"github.com/ovsdn/ovsdn/test/lab/controlplane"
	"github.com/ovsdn/ovsdn/test/lab/machine"
)

// productDir is where a machine sees the folder with the product's programs.
const productDir = "/opt/ovsdn/bin"

// Where a node's parts find each other.
const (
	containerdSocket = "/run/containerd/containerd.sock"
	containerdConfig = "/etc/containerd/config.toml"
	kubeDir          = "/etc/kubernetes"
)

// Names of the units that up starts when the API server answers.
const (
	kubeletUnit = "kubelet"
	agentUnit   = "ovsdn-node"
)

// baseSpec is what all machines have in common.
func (l *Lab) baseSpec(name string, addr netip.Addr) machine.Spec {
	spec := machine.Spec{
		Name: name, Dir: l.machineDir(name), Logs: l.LogDir(),
		NetNS: netnsName(l.name, name), Cgroup: l.cgroup(name), Links: map[string]string{},
		Files: map[string]string{
			"/etc/hostname": name + "\n",
			// Otherwise all nodes would report the host's name to the API server.
			"/etc/machine-id": fmt.Sprintf("%x", sha256.Sum256([]byte(l.name+"/"+name)))[:32] + "\n",
			"/etc/hosts":      fmt.Sprintf("127.0.0.1 localhost\n::1 localhost\n%s %s\n", addr, name),
			// Pods inherit it. No server answers at this address, and requests fail at once.
			"/etc/resolv.conf": "nameserver 127.0.0.1\n",
		},
		Binds: []machine.Bind{{Source: l.state.BinDir, Target: productDir}},
	}
	addProgram(&spec, "kube", l.state.Programs.Kube)
	addProgram(&spec, "agnhost", l.state.Programs.Agnhost)
	return spec
}

// addProgram puts a program of the host into the search path. It is a link into a folder that is shown at the same
// place, not the file itself: runc runs a copy of itself that it takes from the folder below any mount.
func addProgram(spec *machine.Spec, name, path string) {
	dir := machine.Bind{Source: filepath.Dir(path), Target: filepath.Dir(path)}
	if !slices.Contains(spec.Binds, dir) {
		spec.Binds = append(spec.Binds, dir)
	}
	spec.Links["/usr/local/bin/"+name] = path
}

func (l *Lab) outsideSpec() machine.Spec {
	spec := l.baseSpec(Outside, OutsideAddr())
	spec.Units = []machine.Unit{task("network",
		// A node that does not serve an external address yet redirects to its own default gateway, and the redirect would remain for five minutes.
		[]string{"sysctl", "-qw", "net.ipv4.conf.all.accept_redirects=0", "net.ipv4.conf." + uplink + ".accept_redirects=0"},
		[]string{"ip", "link", "set", "lo", "up"},
		[]string{"ip", "address", "replace", OutsideAddr().String() + "/32", "dev", "lo"},
		[]string{"ip", "address", "replace", outsideFabricAddr().String() + "/24", "dev", uplink},
		[]string{"ip", "link", "set", uplink, "up"},
	)}
	return spec
}

// nodeSpec makes a new key pair for the node each time.
func (l *Lab) nodeSpec(plane *controlplane.Plane, number int) (machine.Spec, error) {
	name, addr := nodeName(number), nodeAddr(number)
	spec := l.baseSpec(name, addr)
	programs := l.state.Programs
	for program, path := range map[string]string{
		"kubelet": programs.Kube, "containerd": programs.Containerd,
		"containerd-shim-runc-v2": programs.Shim, "ctr": programs.Ctr, "runc": programs.Runc,
	} {
		addProgram(&spec, program, path)
	}
	spec.Binds = append(spec.Binds, machine.Bind{Source: l.imageDir(), Target: l.imageDir()})
	if l.state.Shape.Install != Processes {
		if err := os.MkdirAll(l.productImageDir(), 0o700); err != nil {
			return machine.Spec{}, err
		}
		spec.Binds = append(spec.Binds, machine.Bind{Source: l.productImageDir(), Target: l.productImageDir()})
	}
	// Logs of containers are in the folder of all logs.
	if err := os.MkdirAll(l.podLogDir(name), 0o700); err != nil {
		return machine.Spec{}, err
	}
	spec.Binds = append(spec.Binds, machine.Bind{Source: l.podLogDir(name), Target: "/var/log/pods"})
	spec.Empty = []string{"/etc/cni/net.d", "/opt/cni/bin", "/var/log", "/etc/containerd", kubeDir}
	spec.Disks = []string{"/var/lib/containerd", "/var/lib/kubelet", "/var/lib/cni", "/var/lib/ovsdn", "/etc/openvswitch"}
	// The kubelet sets these, and they are the host's.
	spec.Sysctls = map[string]string{
		"vm/overcommit_memory": "1", "vm/panic_on_oom": "0",
		"kernel/panic": "10", "kernel/panic_on_oops": "1", "kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
	}
	if err := errors.Join(l.addProxy(&spec), l.addNodeFiles(&spec, plane, name, addr)); err != nil {
		return machine.Spec{}, err
	}
	images, err := l.images()
	if err != nil {
		return machine.Spec{}, err
	}
	spec.Units = append(l.switchUnits(name, addr), runtimeUnits(images)...)
	spec.Units = append(spec.Units,
		machine.Unit{Name: kubeletUnit, Manual: true, After: []string{"images"}, Commands: [][]string{{
			"kubelet", "--config=" + kubeDir + "/kubelet.yaml", "--kubeconfig=" + kubeDir + "/kubelet.kubeconfig",
			"--node-ip=" + addr.String(), "--hostname-override=" + name,
		}}},
	)
	if err := addServiceProxy(&spec, plane, &l.state); err != nil {
		return machine.Spec{}, err
	}
	if l.state.Shape.Install != Processes {
		return spec, nil
	}
	spec.Units = append(spec.Units,
		// A link, so that the next build is in use at once.
		task("cni-plugin", []string{"ln", "-sf", productDir + "/ovsdn-cni", "/opt/cni/bin/ovsdn-cni"}),
		machine.Unit{Name: agentUnit, Manual: true, After: []string{"underlay", "cni-plugin"}, Commands: [][]string{{
			productDir + "/ovsdn-node", "--kubeconfig", l.productKubeconfig(name, agentUnit), "--node-name", name,
			"--datapath", string(l.state.Shape.Datapath), "--unidle=" + strconv.FormatBool(l.state.Shape.Unidle), "-v=2",
		}}},
	)
	return spec, nil
}

// runtimeUnits bring up containerd with the images.
func runtimeUnits(images []string) []machine.Unit {
	load := task("images")
	load.After = []string{"containerd"}
	for _, image := range images {
		load.Commands = append(load.Commands, importCommand(image))
	}
	return []machine.Unit{
		{Name: "containerd", Socket: containerdSocket, Commands: [][]string{{"containerd", "--config", containerdConfig}}},
		load,
	}
}

func importCommand(archive string) []string { return ctr("images", "import", archive) }

func ctr(args ...string) []string {
	return append([]string{"ctr", "--address", containerdSocket, "--namespace", "k8s.io"}, args...)
}

// podLogDir is what a node has as /var/log/pods.
func (l *Lab) podLogDir(node string) string { return filepath.Join(l.LogDir(), node+"-pods") }

func (l *Lab) addNodeFiles(spec *machine.Spec, plane *controlplane.Plane, name string, addr netip.Addr) error {
	pair, err := plane.IssueNode(name, addr)
	if err != nil {
		return err
	}
	kubelet, err := plane.Kubeconfig(plane.URL(), controlplane.Credentials{Pair: pair})
	if err != nil {
		return err
	}
	for path, content := range map[string]string{
		containerdConfig:                containerdTOML(),
		kubeDir + "/ca.crt":             string(plane.AuthorityPEM()),
		kubeDir + "/kubelet.crt":        string(pair.Cert),
		kubeDir + "/kubelet.key":        string(pair.Key),
		kubeDir + "/kubelet.kubeconfig": string(kubelet),
		kubeDir + "/kubelet.yaml":       kubeletYAML(l.state.Shape.DNSAddr()),
	} {
		spec.Files[path] = content
	}
	return nil
}

// containerdTOML: no AppArmor, since a node has no profiles; no score below the own one, which would need more rights than
// nested machines have; and no plugins that look for file systems or services that are not there.
func containerdTOML() string {
	return `version = 3
disabled_plugins = [
  "io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.erofs", "io.containerd.snapshotter.v1.zfs", "io.containerd.differ.v1.erofs",
  "io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri", "io.containerd.tracing.processor.v1.otlp",
]
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "` + components.PauseRef + `"
[plugins."io.containerd.cri.v1.runtime"]
  disable_apparmor = true
  restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["/opt/cni/bin"]
  conf_dir = "/etc/cni/net.d"
  # There is no other plugin here than the one under test, so none for the loopback interface.
  use_internal_loopback = true
[plugins."io.containerd.metadata.v1.bolt"]
  no_sync = true
`
}

// kubeletYAML: a container that ends is started again after a second, as often as that may be, since tests kill them. The disk and the image store are the
// host's, whose fill level is no reason to evict a pod here.
func kubeletYAML(dns netip.Addr) string {
	return `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix://` + containerdSocket + `
failCgroupV1: false
cgroupDriver: cgroupfs
enforceNodeAllocatable: []
failSwapOn: false
localStorageCapacityIsolation: false
evictionHard: {imagefs.available: "0%", nodefs.available: "0%", nodefs.inodesFree: "0%"}
imageGCHighThresholdPercent: 100
makeIPTablesUtilChains: false
readOnlyPort: 0
clusterDomain: ` + clusterDomain + `
clusterDNS: [` + dns.String() + `]
maxPods: 250
serializeImagePulls: false
featureGates: {KubeletCrashLoopBackOffMax: true}
crashLoopBackOff: {maxContainerRestartPeriod: 1s}
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: ` + kubeDir + `/ca.crt}
authorization: {mode: Webhook}
tlsCertFile: ` + kubeDir + `/kubelet.crt
tlsPrivateKeyFile: ` + kubeDir + `/kubelet.key
`
}

// productKubeconfig is where one of the product's programs finds its kubeconfig, on the host and in its machine.
func (l *Lab) productKubeconfig(machineName, program string) string {
	return filepath.Join(l.machineDir(machineName), program+".kubeconfig")
}

// hasProgram reports whether one of the product's programs has been built.
func (l *Lab) hasProgram(name string) bool {
	_, err := os.Stat(filepath.Join(l.state.BinDir, name))
	return err == nil
}
