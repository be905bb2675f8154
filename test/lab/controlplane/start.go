package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"

	"github.com/ovsdn/ovsdn/test/lab/logtail"
)

// startTimeout is for slow machines, like emulated ones. A process that ends is noticed at once.
const startTimeout = 5 * time.Minute

// ControlPlane is a running etcd and kube-apiserver.
type ControlPlane struct {
	plane     *Plane
	config    *rest.Config
	processes []*process
	closePort func() error
}

// Start runs etcd and kube-apiserver and returns when the API server is ready. The processes die with this process,
// or with Stop. With no port given, the API server gets a free one.
func Start(ctx context.Context, config Config) (*ControlPlane, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("timeout after %v", startTimeout))
	defer cancel()
	cp := &ControlPlane{closePort: func() error { return nil }}
	if err := cp.start(ctx, config); err != nil {
		return nil, errors.Join(err, cp.Stop())
	}
	return cp, nil
}

func (cp *ControlPlane) start(ctx context.Context, config Config) error {
	if config.Port == 0 {
		config.setDefaults()
		var err error
		if config.Port, cp.closePort, err = reservePort(config.Address); err != nil {
			return err
		}
	}
	var err error
	if cp.plane, err = Prepare(config); err != nil {
		return err
	}
	if cp.config, err = cp.plane.AdminConfig(cp.plane.URL()); err != nil {
		return err
	}
	if err := cp.run(ctx, cp.plane.Etcd(), func(ctx context.Context) error {
		return waitSocket(ctx, cp.plane.EtcdSocket())
	}); err != nil {
		return err
	}
	return cp.run(ctx, cp.plane.APIServer(), func(ctx context.Context) error { return WaitReady(ctx, cp.config) })
}

// run starts the command and waits until it is ready, or has ended, which is an error.
func (cp *ControlPlane) run(ctx context.Context, command Command, ready func(context.Context) error) error {
	log := filepath.Join(cp.plane.config.Dir, command.Name+".log")
	p, err := startProcess(command, log)
	if err != nil {
		return fmt.Errorf("start %s: %w", command.Name, err)
	}
	cp.processes = append(cp.processes, p)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-p.done:
			cancel(fmt.Errorf("%s ended: %w", command.Name, p.err))
		case <-ctx.Done():
		}
	}()
	if err := ready(ctx); err != nil {
		return fmt.Errorf("%w\n%s", err, logtail.Last(log))
	}
	return nil
}

// RESTConfig is for clients that may do everything and are not throttled.
func (cp *ControlPlane) RESTConfig() *rest.Config { return rest.CopyConfig(cp.config) }

// Plane has the keys, to make other users.
func (cp *ControlPlane) Plane() *Plane { return cp.plane }

// Stop kills the processes and returns when they have ended. The directory remains. It may be called again.
func (cp *ControlPlane) Stop() error {
	// The API server first, and hard: it lingers for a minute on SIGTERM.
	for i := len(cp.processes) - 1; i >= 0; i-- {
		cp.processes[i].kill()
	}
	cp.processes = nil
	closePort := cp.closePort
	cp.closePort = func() error { return nil }
	return closePort()
}

// process is a child that dies with this process.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
	err  error // why it ended, valid when done is closed
}

func startProcess(command Command, log string) (*process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p := &process{cmd: exec.Command(command.Args[0], command.Args[1:]...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = out, out
	// An API server of a test mostly starts. With a larger heap it takes a tenth less of the processors.
	p.cmd.Env = append(os.Environ(), "GOGC=400")
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	started := make(chan error)
	go func() {
		defer close(p.done)
		// The death signal comes when the thread that started the child ends, so the thread must live as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err != nil {
			return
		}
		if p.err = p.cmd.Wait(); p.err == nil {
			p.err = errors.New("exit status 0")
		}
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

func (p *process) kill() {
	select {
	case <-p.done:
	default:
		// An error only means that the process has just ended.
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

// reservePort finds a free TCP port and holds it with a bound socket. Only a server that binds with SO_REUSEPORT, as kube-apiserver can, may
// then use it.
func reservePort(addr netip.Addr) (uint16, func() error, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, nil, fmt.Errorf("reserve a port: %w", err)
	}
	release := func() error { return unix.Close(fd) }
	port, err := bindPort(fd, addr)
	if err != nil {
		return 0, nil, errors.Join(fmt.Errorf("reserve a port on %s: %w", addr, err), release())
	}
	return port, release, nil
}

func bindPort(fd int, addr netip.Addr) (uint16, error) {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		return 0, err
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: addr.As4()}); err != nil {
		return 0, err
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return 0, err
	}
	return uint16(name.(*unix.SockaddrInet4).Port), nil
}
