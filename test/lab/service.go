package lab

import (
	"context"
	"fmt"

	"github.com/ovsdn/ovsdn/test/lab/machine"
)

// Service is a process of a machine that is started again a second after it ends, unless stopped: by the machine's PID 1 or, for the
// product's programs in labs with --install=manifests, by kubelet.
type Service struct {
	machine, name string
	control       *machine.Control
	containers    *containers // or nil
}

// Service of a node, of Outside or of ControlPlane. Nodes have kubelet, kube-proxy, containerd, ovsdb-server,
// ovs-vswitchd and ovsdn-node; the control plane has etcd, kube-apiserver, kube-controller-manager, kube-scheduler
// and ovsdn-controller, which are all controllers where kubelet runs them. With ServiceProxy OVS nodes have no kube-proxy.
func (l *Lab) Service(machineName, name string) (*Service, error) {
	control, err := l.control(machineName)
	if err != nil {
		return nil, err
	}
	return &Service{machine: machineName, name: name, control: control, containers: l.containers(machineName, name)}, nil
}

// Start returns when the process has been started.
func (s *Service) Start(ctx context.Context) error { return s.do(ctx, machine.Start) }

// Stop sends SIGTERM, then SIGKILL, and returns when the process has ended. It does not restart until Start.
func (s *Service) Stop(ctx context.Context) error { return s.do(ctx, machine.Stop) }

// Restart is Stop and Start.
func (s *Service) Restart(ctx context.Context) error { return s.do(ctx, machine.Restart) }

// Kill sends SIGKILL and returns when the process has ended. It restarts by itself.
func (s *Service) Kill(ctx context.Context) error { return s.do(ctx, machine.Kill) }

// Do is any of these by name.
func (s *Service) Do(ctx context.Context, action machine.Action) error { return s.do(ctx, action) }

// Status returns the current state of the service.
func (s *Service) Status(ctx context.Context) (machine.Status, error) {
	look := func() (machine.Status, error) { return s.control.Unit(ctx, s.name) }
	if s.containers != nil {
		look = func() (machine.Status, error) { return s.containers.status(ctx) }
	}
	status, err := look()
	if err != nil {
		return machine.Status{}, fmt.Errorf("status of %s on %s: %w", s.name, s.machine, err)
	}
	return status, nil
}

func (s *Service) do(ctx context.Context, action machine.Action) error {
	act := func() error { return s.control.Do(ctx, s.name, action) }
	if s.containers != nil {
		act = func() error { return s.containers.do(ctx, action) }
	}
	if err := act(); err != nil {
		return fmt.Errorf("%s %s on %s: %w", action, s.name, s.machine, err)
	}
	return nil
}

// Units are all units of a machine.
func (l *Lab) Units(ctx context.Context, machineName string) ([]machine.Status, error) {
	control, err := l.control(machineName)
	if err != nil {
		return nil, err
	}
	units, err := control.Units(ctx)
	if err != nil {
		return nil, fmt.Errorf("units of %s: %w", machineName, err)
	}
	return units, nil
}
