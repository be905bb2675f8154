package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/ovsdn/ovsdn/test/lab/components"
	"github.com/ovsdn/ovsdn/test/lab/controlplane"
	"github.com/ovsdn/ovsdn/test/lab/machine"
)

// Up brings a lab up and returns when it can be used: when its nodes are ready, if the network agent has been built, or else
// registered. In a lab that is up already it starts what is missing. It first waits for the start of any other lab on this machine.
func Up(ctx context.Context, o Options) (*Lab, error) {
	o.setDefaults()
	if err := o.validate(); err != nil {
		return nil, err
	}
	if err := preflight(ctx, o.Shape); err != nil {
		return nil, err
	}
	start, err := lockStart(ctx, startLockFile, o.Name, o.Progress)
	if err != nil {
		return nil, err
	}
	defer start.Close()
	l := &Lab{name: o.Name}
	if err := os.MkdirAll(l.path(), 0o700); err != nil {
		return nil, fmt.Errorf("make the lab's folder: %w", err)
	}
	lock, err := acquire(ctx, l.path(), o.Progress)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	u := &up{Lab: l, options: o, began: time.Now()}
	if err := u.run(ctx); err != nil {
		return nil, err
	}
	return l, nil
}

// up is one run of Up, or the part of it that a new node needs.
type up struct {
	*Lab
	options Options
	began   time.Time
	plane   *controlplane.Plane
}

// step runs a part and reports its duration. An error gets the step's name.
func (u *up) step(name string, do func() error) error {
	began := time.Now()
	if err := do(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	u.options.Progress("%5.1fs  %s (%.1fs)", time.Since(u.began).Seconds(), name, time.Since(began).Seconds())
	return nil
}

func (u *up) run(ctx context.Context) error {
	if err := u.recall(ctx); err != nil {
		return err
	}
	if err := u.step("components", func() error { return u.prepare(ctx) }); err != nil {
		return err
	}
	if err := u.step("fabric", u.ensureFabric); err != nil {
		return err
	}
	group, groupCtx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return u.step("control plane", func() error { return u.startControlPlane(groupCtx) })
	})
	imagesMade := make(chan struct{})
	group.Go(func() error {
		defer close(imagesMade)
		if !u.hasImages() {
			return nil
		}
		return u.step("images", func() error { return u.makeProductImages(groupCtx) })
	})
	if !u.state.Shape.ControlPlaneOnly {
		group.Go(func() error {
			return u.step(Outside, func() error {
				return u.ensureMachine(groupCtx, Outside, func() (machine.Spec, error) {
					return u.outsideSpec(), u.attach(Outside, outsideFabricAddr())
				})
			})
		})
		for _, number := range u.state.Nodes {
			group.Go(func() error {
				if err := u.step(nodeName(number), func() error { return u.bootNode(groupCtx, number) }); err != nil {
					return err
				}
				// While the API server starts.
				<-imagesMade
				if groupCtx.Err() != nil {
					return nil // another part reports it
				}
				return u.loadProduct(groupCtx, nodeName(number))
			})
		}
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if err := u.finish(ctx); err != nil {
		return err
	}
	return u.step("namespaces ready", func() error { return u.waitDefaultAccount(ctx) })
}

// waitDefaultAccount returns when pods can be made in namespace default: the API server refuses them until
// kube-controller-manager has given the namespace its account.
func (u *up) waitDefaultAccount(ctx context.Context) error {
	ctx, cancel := u.bePatient(ctx, ControlPlane)
	defer cancel()
	client, err := u.Client()
	if err != nil {
		return err
	}
	if err := wait.PollUntilContextCancel(ctx, nodesInterval, true, func(ctx context.Context) (bool, error) {
		_, err := client.CoreV1().ServiceAccounts(metav1.NamespaceDefault).Get(ctx, "default", metav1.GetOptions{})
		return err == nil, nil
	}); err != nil {
		return errors.Join(fmt.Errorf("service account default/default: %w", context.Cause(ctx)), u.check(ControlPlane))
	}
	return nil
}

// recall reads the existing lab, or records the wanted one.
func (u *up) recall(ctx context.Context) error {
	wanted := u.options.Shape
	err := u.read()
	switch {
	case errors.Is(err, fs.ErrNotExist):
		u.state = state{Shape: wanted}
		if !wanted.ControlPlaneOnly {
			for number := range wanted.Nodes {
				u.state.Nodes = append(u.state.Nodes, number+1)
			}
		}
		if err := u.checkInotify(ctx); err != nil {
			return err
		}
		return u.write()
	case err != nil:
		return err
	}
	differing, err := u.state.Shape.difference(wanted)
	if err != nil {
		return err
	}
	if len(differing) > 0 {
		return fmt.Errorf("lab %s exists with other options (%s): take it down first, or give another --name", u.name, strings.Join(differing, "; "))
	}
	return u.checkInotify(ctx)
}

// prepare finds or builds all programs and writes the control plane's keys.
func (u *up) prepare(ctx context.Context) error {
	var err error
	if u.state.BinDir, u.state.Checkout, err = findBinDir(u.options.BinDir); err != nil {
		return err
	}
	set, err := components.Build(ctx, components.Options{
		SourceDir: u.state.Checkout, CacheDir: u.options.CacheDir, Progress: u.options.Progress,
	})
	if err != nil {
		return err
	}
	u.state.Programs = *set
	if err := u.write(); err != nil {
		return err
	}
	if !u.state.Shape.ControlPlaneOnly {
		if err := u.storeImages(); err != nil {
			return err
		}
	}
	if u.hasImages() {
		if err := errors.Join(u.tagProduct(), u.write()); err != nil {
			return err
		}
	}
	u.plane, err = u.preparePlane()
	return err
}

// hasImages reports whether nodes have the product's images: only if its programs have been built.
func (u *up) hasImages() bool {
	return u.state.Shape.Install != Processes && !u.state.Shape.ControlPlaneOnly && u.hasProgram(agentUnit) && u.hasProgram(controllerUnit)
}

// startControlPlane returns when the API server is ready and knows the product's kinds and accounts.
func (u *up) startControlPlane(ctx context.Context) error {
	if err := u.ensureControlPlane(ctx); err != nil {
		return err
	}
	config, err := u.RESTConfig()
	if err != nil {
		return err
	}
	ctx, cancel := u.bePatient(ctx, ControlPlane)
	defer cancel()
	if err := controlplane.WaitReady(ctx, config); err != nil {
		return errors.Join(err, u.check(ControlPlane))
	}
	if err := u.startUnits(ctx, ControlPlane, controllerManagerUnit, schedulerUnit); err != nil {
		return err
	}
	if u.state.Shape.ControlPlaneOnly {
		return nil
	}
	if err := u.applyDNS(ctx); err != nil {
		return err
	}
	switch {
	case u.hasImages() && u.state.Shape.Install == None:
		return u.writeKustomization()
	case u.hasImages():
		return u.Install(ctx)
	case u.state.Shape.Install != Processes:
		return nil
	}
	for _, folder := range []string{"crds", "rbac"} {
		if err := controlplane.Apply(ctx, config, os.DirFS(filepath.Join(u.state.Checkout, "deploy", folder))); err != nil {
			return fmt.Errorf("deploy/%s: %w", folder, err)
		}
	}
	if !u.hasProgram(controllerUnit) {
		return nil
	}
	if err := u.writeProductKubeconfig(ctx, ControlPlane, controllerUnit); err != nil {
		return err
	}
	return u.startUnits(ctx, ControlPlane, controllerUnit)
}

// ensureControlPlane starts the control plane's machine unless it runs.
func (u *up) ensureControlPlane(ctx context.Context) error {
	running, err := u.isRunning(ctx, ControlPlane)
	if err != nil || running {
		return err
	}
	if err := u.killMachines(ctx, u.machineDir(ControlPlane), u.cgroup(ControlPlane)); err != nil {
		return err
	}
	listener, err := u.listen()
	if err != nil {
		return err
	}
	defer listener.Close()
	u.state.Port = listener.Addr().(*net.TCPAddr).Port
	if err := u.write(); err != nil {
		return err
	}
	kubeconfig, err := u.plane.AdminKubeconfig(fmt.Sprintf("https://127.0.0.1:%d", u.state.Port))
	if err != nil {
		return err
	}
	if err := writeFile(u.kubeconfigPath(), kubeconfig); err != nil {
		return err
	}
	file, err := listener.File()
	if err != nil {
		return fmt.Errorf("listen for clients of the API server: %w", err)
	}
	defer file.Close()
	spec, err := u.controlPlaneSpec(u.plane)
	if err != nil {
		return err
	}
	return machine.Launch(ctx, machine.Config{
		Spec: spec, Program: filepath.Join(u.state.BinDir, selfProgram), Forward: file,
	})
}

// listen opens the port on the host that leads to the API server, the same as before if it can be had.
func (u *up) listen() (*net.TCPListener, error) {
	loopback := net.IPv4(127, 0, 0, 1)
	listener, err := net.ListenTCP("tcp", &net.TCPAddr{IP: loopback, Port: u.state.Port})
	if err != nil {
		listener, err = net.ListenTCP("tcp", &net.TCPAddr{IP: loopback})
	}
	if err != nil {
		return nil, fmt.Errorf("listen for clients of the API server: %w", err)
	}
	return listener, nil
}

func (u *up) isRunning(ctx context.Context, name string) (bool, error) {
	_, err := machine.NewControl(u.machineDir(name)).PID(ctx)
	if errors.Is(err, machine.ErrNotRunning) {
		return false, nil
	}
	return err == nil, err
}

// ensureMachine starts a machine on the fabric unless it runs, and returns when its units are up. The function re-creates its namespace and
// returns its spec.
func (u *up) ensureMachine(ctx context.Context, name string, specify func() (machine.Spec, error)) error {
	running, err := u.isRunning(ctx, name)
	if err != nil {
		return err
	}
	if !running {
		if err := u.killMachines(ctx, u.machineDir(name), u.cgroup(name)); err != nil {
			return err
		}
		spec, err := specify()
		if err != nil {
			return err
		}
		if err := machine.Launch(ctx, machine.Config{Spec: spec, Program: filepath.Join(u.state.BinDir, selfProgram)}); err != nil {
			return err
		}
	}
	ctx, cancel := u.bePatient(ctx, name)
	defer cancel()
	return machine.NewControl(u.machineDir(name)).WaitUp(ctx)
}

// startUnits starts units unless they run.
func (u *up) startUnits(ctx context.Context, name string, units ...string) error {
	control := machine.NewControl(u.machineDir(name))
	for _, unit := range units {
		if err := control.Do(ctx, unit, machine.Start); err != nil {
			return fmt.Errorf("start %s on %s: %w", unit, name, err)
		}
	}
	return nil
}
