package machine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// InitVerb and RunVerb are the sub-commands under which a program must call Init and Run, with the machine's folder
// as only argument. Start calls the program with InitVerb.
const (
	InitVerb = "machine-init"
	RunVerb  = "machine-run"
)

// forwardFD is the listener that Start was given.
const forwardFD = 3

// searchPath is where a machine's programs are.
const searchPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Init is the first half of PID 1: it joins the machine's cgroups and only then enters a cgroup namespace, so that
// they are its root. An unshare holds for one thread, so the second half is a new program: Run.
func Init(dir string) error {
	spec, err := readSpec(dir)
	if err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make the mounts private: %w", err)
	}
	if err := joinCgroup(spec.Cgroup); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("enter a new cgroup namespace: %w", err)
	}
	return fmt.Errorf("run %s: %w", self, unix.Exec(self, []string{os.Args[0], RunVerb, dir}, os.Environ()))
}

// Run is the second half of PID 1: the machine's life.
func Run(dir string) error {
	spec, err := readSpec(dir)
	if err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(spec.Name)); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	if err := enterRoot(spec); err != nil {
		return err
	}
	os.Clearenv()
	if err := errors.Join(os.Setenv("PATH", searchPath), os.Setenv("HOME", "/root")); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	s := newSupervisor(spec)
	if _, err := s.serve(ctx, filepath.Join(dir, controlEnd)); err != nil {
		return err
	}
	if spec.Forward != "" {
		if err := forward(ctx, spec.Forward); err != nil {
			return err
		}
	}
	if spec.Proxy != nil {
		if err := spec.Proxy.serve(ctx); err != nil {
			return err
		}
	}
	s.run(ctx)
	return nil
}

// serve answers Control until the context ends; ended is closed when it has stopped. When the socket accepts, the machine can be entered.
func (s *supervisor) serve(ctx context.Context, socket string) (ended <-chan struct{}, err error) {
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove an old control socket: %w", err)
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("listen for control: %w", err)
	}
	server := &http.Server{Handler: s.handler(), ReadHeaderTimeout: 10 * time.Second}
	var running sync.WaitGroup
	running.Go(func() {
		<-ctx.Done()
		_ = server.Close()
	})
	running.Go(func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			fmt.Fprintf(os.Stderr, "control socket: %v\n", err)
		}
	})
	over := make(chan struct{})
	go func() {
		defer close(over)
		running.Wait()
	}()
	return over, nil
}

// forward passes connections to the inherited listener, which belongs to the host's network, on to an address of
// the machine's. So the machine is reached from the host, and the host gets no interface, route or firewall rule for it.
func forward(ctx context.Context, address string) error {
	file := os.NewFile(forwardFD, "listener")
	if file == nil {
		return errors.New("no listener was given to forward from")
	}
	listener, err := net.FileListener(file)
	if err != nil {
		return fmt.Errorf("listen for connections to forward: %w", err)
	}
	if err := file.Close(); err != nil {
		return fmt.Errorf("listen for connections to forward: %w", err)
	}
	acceptEach(ctx, listener, "a connection to forward", func(client net.Conn) {
		defer client.Close()
		server, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err != nil {
			return // No server yet. The client's connection is closed.
		}
		defer server.Close()
		splice(client.(*net.TCPConn), server.(*net.TCPConn))
	})
	return nil
}

// isMachine reports whether a command line is that of the PID 1 of a machine in the folder or below it.
func isMachine(args []string, dir string) bool {
	return len(args) >= 3 && (args[1] == InitVerb || args[1] == RunVerb) &&
		(args[2] == dir || strings.HasPrefix(args[2], dir+"/"))
}
