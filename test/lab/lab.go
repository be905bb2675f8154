// Package lab runs a real Kubernetes cluster on one Linux machine, without a container engine: a control plane, nodes with
// kubelet, containerd and an Open vSwitch of their own, and a host outside the cluster. Each is a
// machine of Linux namespaces, see package machine.
//
// All labs use the same addresses inside. The fabric is 172.31.0.0/24: the control plane is .1, node i is .(10+i), the
// host outside is .254 and also 192.0.2.1, which the nodes route to. It routes nothing back to the cluster's networks.
//
// kube-apiserver reaches pods and services through a proxy in a node's network, as managed control planes do.
//
// The host's network is not touched: the API server is reached through a port on the loopback interface.
package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/ovsdn/ovsdn/images/product"
	"github.com/ovsdn/ovsdn/test/lab/components"
	"github.com/ovsdn/ovsdn/test/lab/machine"
)

// stateRoot has a folder for each lab.
const stateRoot = "/var/lib/ovsdn-lab"

// The machines that are no nodes.
const (
	ControlPlane = "control-plane"
	Outside      = "outside"
)

// Lab is a lab on this machine, as described in its folder.
type Lab struct {
	name  string
	state state
}

// state is the content of state.json in a lab's folder.
type state struct {
	Shape Shape
	// Nodes are the numbers of the existing nodes.
	Nodes []int
	// Port of the loopback interface that leads to the API server.
	Port int
	// BinDir and Programs are what the lab was started with.
	BinDir   string
	Checkout string
	Programs components.Set
	// Tags of the product's images, if manifests install it, and the folder of the manifests.
	Tags      map[product.Name]string `json:",omitempty"`
	Manifests string                  `json:",omitempty"`
}

// ErrNotExist is the error for a lab that does not exist.
var ErrNotExist = errors.New("no such lab")

// Open returns an existing lab, running or not.
func Open(name string) (*Lab, error) {
	if err := validateName(name); err != nil {
		return nil, err
	}
	l := &Lab{name: name}
	err := l.read()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("lab %q: %w: start it with \"ovsdn-lab up --name %s\"", name, ErrNotExist, name)
	}
	return l, err
}

func (l *Lab) read() error {
	content, err := os.ReadFile(l.path("state.json"))
	if err != nil {
		return fmt.Errorf("read the state of lab %s: %w", l.name, err)
	}
	l.state = state{}
	if err := json.Unmarshal(content, &l.state); err != nil {
		return fmt.Errorf("the state of lab %s in %s is damaged, take it down: %w", l.name, l.path("state.json"), err)
	}
	return nil
}

func (l *Lab) write() error {
	content, err := json.MarshalIndent(l.state, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the state of lab %s: %w", l.name, err)
	}
	return writeFile(l.path("state.json"), content)
}

// writeFile replaces the file in one step, so that a half-written one is never found later.
func writeFile(path string, content []byte) error {
	if err := os.WriteFile(path+".next", content, 0o600); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return os.Rename(path+".next", path)
}

// Name of the lab.
func (l *Lab) Name() string { return l.name }

// Shape is what the lab was asked to be.
func (l *Lab) Shape() Shape { return l.state.Shape }

// Nodes are the names of the nodes, in the order of their numbers.
func (l *Lab) Nodes() []string {
	var names []string
	for _, number := range l.state.Nodes {
		names = append(names, nodeName(number))
	}
	return names
}

// Machines are the names of all machines of the lab.
func (l *Lab) Machines() []string {
	if l.state.Shape.ControlPlaneOnly {
		return []string{ControlPlane}
	}
	return append([]string{ControlPlane, Outside}, l.Nodes()...)
}

// NodeAddr is a node's address on the fabric.
func (l *Lab) NodeAddr(node string) (netip.Addr, error) {
	number, err := l.nodeNumber(node)
	if err != nil {
		return netip.Addr{}, err
	}
	return nodeAddr(number), nil
}

// OutsideAddr is where the host outside the cluster is, as nodes and pods reach it.
func OutsideAddr() netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, 1}) }

func controlPlaneAddr() netip.Addr { return netip.AddrFrom4([4]byte{172, 31, 0, 1}) }
func outsideFabricAddr() netip.Addr {
	return netip.AddrFrom4([4]byte{172, 31, 0, 254})
}
func nodeAddr(number int) netip.Addr {
	return netip.AddrFrom4([4]byte{172, 31, 0, byte(firstNodeHost + number)})
}
func nodeName(number int) string { return "node" + strconv.Itoa(number) }

func (l *Lab) nodeNumber(node string) (int, error) {
	for _, number := range l.state.Nodes {
		if nodeName(number) == node {
			return number, nil
		}
	}
	return 0, fmt.Errorf("lab %s has no node %q: it has %v", l.name, node, l.Nodes())
}

// Kubeconfig is an administrator's, for clients on this host.
func (l *Lab) Kubeconfig() ([]byte, error) {
	content, err := os.ReadFile(l.kubeconfigPath())
	if err != nil {
		return nil, fmt.Errorf("lab %s has no kubeconfig yet: %w", l.name, err)
	}
	return content, nil
}

// RESTConfig is the same for Go clients. They are not throttled.
func (l *Lab) RESTConfig() (*rest.Config, error) {
	kubeconfig, err := l.Kubeconfig()
	if err != nil {
		return nil, err
	}
	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig of lab %s: %w", l.name, err)
	}
	config.QPS = -1
	return config, nil
}

// Client is an administrator's.
func (l *Lab) Client() (kubernetes.Interface, error) {
	config, err := l.RESTConfig()
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client of lab %s: %w", l.name, err)
	}
	return client, nil
}

// LogDir has a file for each process, named after machine and unit.
func (l *Lab) LogDir() string { return l.path("logs") }

func (l *Lab) path(elements ...string) string {
	return filepath.Join(append([]string{stateRoot, l.name}, elements...)...)
}
func (l *Lab) kubeconfigPath() string        { return l.path("admin.kubeconfig") }
func (l *Lab) machineDir(name string) string { return l.path("machines", name) }
func (l *Lab) imageDir() string              { return l.path("images") }
func (l *Lab) cgroup(elements ...string) string {
	return filepath.Join(append([]string{cgroupRoot, l.name}, elements...)...)
}

// cgroupRoot is the parent of the labs' cgroups.
const cgroupRoot = "ovsdn-lab"

func (l *Lab) control(name string) (*machine.Control, error) {
	if !slices.Contains(l.Machines(), name) {
		return nil, fmt.Errorf("lab %s has no machine %q: it has %v", l.name, name, l.Machines())
	}
	return machine.NewControl(l.machineDir(name)), nil
}

// withLock runs the function while no other process changes the lab, with the state as it is then.
func (l *Lab) withLock(ctx context.Context, progress func(string, ...any), do func() error) error {
	lock, err := acquire(ctx, l.path(), progress)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := l.read(); err != nil {
		return err
	}
	return do()
}
