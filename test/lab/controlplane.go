package lab

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"

	"github.com/ovsdn/ovsdn/test/lab/controlplane"
	"github.com/ovsdn/ovsdn/test/lab/machine"
)

// apiPort is where kube-apiserver listens on the fabric.
const apiPort = 6443

// Names of the control plane's units beside kube-apiserver and etcd.
const (
	controllerUnit        = "ovsdn-controller"
	controllerManagerUnit = "kube-controller-manager"
	schedulerUnit         = "kube-scheduler"
)

// preparePlane writes the control plane's keys and configuration, as far as they are missing.
func (l *Lab) preparePlane() (*controlplane.Plane, error) {
	config := controlplane.Config{
		Kube: l.state.Programs.Kube, Dir: l.path("control-plane"),
		Address: controlPlaneAddr(), Port: apiPort, ServiceNetwork: l.state.Shape.ServiceNetwork,
	}
	if !l.state.Shape.ControlPlaneOnly {
		config.Proxy, config.ClusterIPs = l.proxySocket(ControlPlane), l.state.Shape.ClusterIPs
	}
	return controlplane.Prepare(config)
}

// proxyDir has the sockets by which kube-apiserver reaches pods and services from a node's network.
func (l *Lab) proxyDir() string { return l.path("proxies") }

func (l *Lab) proxySocket(machineName string) string {
	return filepath.Join(l.proxyDir(), machineName+".sock")
}

// addProxy gives a machine a proxy. The control plane's connects to the fabric itself, and to pods and services through a node.
func (l *Lab) addProxy(spec *machine.Spec) error {
	if err := os.MkdirAll(l.proxyDir(), 0o700); err != nil {
		return fmt.Errorf("make the folder of proxies: %w", err)
	}
	spec.Binds = append(spec.Binds, machine.Bind{Source: l.proxyDir(), Target: l.proxyDir()})
	spec.Proxy = &machine.Proxy{Socket: l.proxySocket(spec.Name)}
	if spec.Name == ControlPlane {
		spec.Proxy.Direct, spec.Proxy.Via = netip.MustParsePrefix(fabricNetwork), l.proxySocket("node*")
	}
	return nil
}

func (l *Lab) controlPlaneSpec(plane *controlplane.Plane) (machine.Spec, error) {
	spec := l.baseSpec(ControlPlane, controlPlaneAddr())
	spec.Forward = netip.AddrPortFrom(controlPlaneAddr(), apiPort).String()
	spec.Binds = append(spec.Binds, machine.Bind{Source: l.path("control-plane"), Target: l.path("control-plane")})
	spec.Units = []machine.Unit{
		task("network", []string{"ip", "link", "set", "lo", "up"},
			[]string{"ip", "address", "replace", controlPlaneAddr().String() + "/24", "dev", fabricBridge},
			[]string{"ip", "link", "set", fabricBridge, "up"}),
		{Name: "etcd", Commands: [][]string{plane.Etcd().Args}, Socket: plane.EtcdSocket()},
		{Name: "kube-apiserver", Commands: [][]string{plane.APIServer().Args}, After: []string{"network", "etcd"}},
		// These end when there is no API server, or wait longer than needed.
		{Name: controllerManagerUnit, Commands: [][]string{plane.ControllerManager().Args}, Manual: true},
		{Name: schedulerUnit, Commands: [][]string{plane.Scheduler().Args}, Manual: true},
	}
	if l.state.Shape.ControlPlaneOnly {
		return spec, nil
	}
	if l.state.Shape.Install == Processes {
		shape := l.state.Shape
		spec.Units = append(spec.Units, machine.Unit{Name: controllerUnit, Manual: true, Commands: [][]string{{
			productDir + "/ovsdn-controller", "--kubeconfig", l.productKubeconfig(ControlPlane, controllerUnit),
			"--mode", string(shape.Mode), "--cluster-network", shape.ClusterNetwork.String(),
			"--host-bits", strconv.Itoa(shape.HostBits), "--service-network", shape.ServiceNetwork.String(),
			"--service-proxy", string(shape.ServiceProxy), "-v=2",
		}}})
	}
	return spec, l.addProxy(&spec)
}

func task(name string, commands ...[]string) machine.Unit {
	return machine.Unit{Name: name, Task: true, Commands: commands}
}
