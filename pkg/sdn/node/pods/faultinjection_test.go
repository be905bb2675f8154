package pods

import (
	"context"
	"errors"
	"net/netip"
	"sync"

	"github.com/containernetworking/plugins/pkg/ns"
	corev1 "k8s.io/api/core/v1"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/ipam"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/veth"
)

// faults makes steps fail. hit is called before and after each step.
type faults struct {
	mu    sync.Mutex
	point string // "before create", "after flows"
	then  func() // nil: the step fails
	kill  bool   // the fault kills the agent
	dead  bool   // every step fails, as if the agent were killed
}

var errInjected = errors.New("injected")

// at makes one point fail. With kill, all later steps fail too, so that nothing is cleaned up.
func (f *faults) at(point string, kill bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.point, f.kill, f.then = point, kill, nil
}

// cancelAt calls cancel at the point, which does not fail by itself.
func (f *faults) cancelAt(point string, cancel func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.point, f.kill, f.then = point, false, cancel
}

func (f *faults) hit(point string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.dead {
		return errInjected
	}
	if f.point != point {
		return nil
	}
	f.point, f.dead = "", f.kill
	if f.then != nil {
		f.then()
		return nil
	}
	return errInjected
}

// around runs a step between its two fault points.
func (f *faults) around(step string, run func() error) error {
	if err := f.hit("before " + step); err != nil {
		return err
	}
	if err := run(); err != nil {
		return err
	}
	return f.hit("after " + step)
}

type faultyIPAM struct {
	*ipam.IPAM
	*faults
}

func (i faultyIPAM) Allocate(ctx context.Context, id, ifName string) (addrs []netip.Addr, err error) {
	err = i.around("allocate", func() error {
		addrs, err = i.IPAM.Allocate(ctx, id, ifName)
		return err
	})
	return addrs, err
}

func (i faultyIPAM) Release(ctx context.Context, id, ifName string) error {
	return i.around("release", func() error { return i.IPAM.Release(ctx, id, ifName) })
}

func (i faultyIPAM) Sync(ctx context.Context, addrs []netip.Addr) error {
	return i.around("sync", func() error { return i.IPAM.Sync(ctx, addrs) })
}

type faultyLinks struct {
	Links
	*faults
}

func (l faultyLinks) Create(ctx context.Context, pod ns.NetNS, hostVeth string, i veth.Interface) error {
	return l.around("create", func() error { return l.Links.Create(ctx, pod, hostVeth, i) })
}

func (l faultyLinks) Configure(ctx context.Context, pod ns.NetNS, i veth.Interface) error {
	return l.around("configure", func() error { return l.Links.Configure(ctx, pod, i) })
}

func (l faultyLinks) Delete(ctx context.Context, hostVeth string) error {
	return l.around("delete", func() error { return l.Links.Delete(ctx, hostVeth) })
}

type faultySwitch struct {
	Switch
	*faults
}

func (s faultySwitch) AddPort(ctx context.Context, p ovs.Port) (got ovs.Port, err error) {
	err = s.around("add port", func() error {
		got, err = s.Switch.AddPort(ctx, p)
		return err
	})
	return got, err
}

func (s faultySwitch) DeletePort(ctx context.Context, name string) error {
	return s.around("delete port", func() error { return s.Switch.DeletePort(ctx, name) })
}

type faultyFlows struct {
	podFlows
	*faults
}

func (f faultyFlows) Set(ctx context.Context, p sandbox.Pod, object *corev1.Pod) error {
	return f.around("flows", func() error { return f.podFlows.Set(ctx, p, object) })
}

func (f faultyFlows) Remove(a sandbox.Attachment) func(context.Context) error {
	if err := f.hit("before delete flows"); err != nil {
		return func(context.Context) error { return err }
	}
	wait := f.podFlows.Remove(a)
	return func(ctx context.Context) error {
		return errors.Join(wait(ctx), f.hit("after delete flows"))
	}
}
