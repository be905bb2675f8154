package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/containernetworking/plugins/pkg/ns"
	networkv1 "github.com/openshift/api/network/v1"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apitypes "k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/macvlan"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/podflows"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/pods"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/veth"
	"github.com/ovsdn/ovsdn/test/bareagent"
)

// asAgent makes the test binary the agent. It holds an agentConfig.
const asAgent = "OVSDN_TEST_AS_AGENT"

// agentConfig is what the agent's process is started with.
type agentConfig struct {
	RunDir  string // of Open vSwitch
	Socket  string
	IPAMDir string
	Events  string // file that Events are appended to
	Subnet  netip.Prefix

	// The process kills itself the n-th time that it comes to this step.
	DieAt    step
	DieAfter int64
}

// A step is a place between two steps of ADD or DEL.
type step string

// The steps. Those of ADD and DEL that change something are asked for before and after.
func steps() []step {
	var all []step
	for _, name := range []string{
		"allocate", "sync", "create", "configure", "macvlan", "add port", // ADD
		"bundle",                                             // both: a bundle may hold flows of several pods
		"delete port", "delete", "delete macvlan", "release", // DEL
	} {
		all = append(all, step("before "+name), step("after "+name))
	}
	return append(all, "set flows", "delete flows") // handed to the store
}

// fate kills the process.
type fate struct {
	at   step
	left atomic.Int64
}

func (f *fate) pass(at step) {
	if at == f.at && f.left.Add(-1) == 0 {
		_ = unix.Kill(os.Getpid(), unix.SIGKILL)
		select {}
	}
}

func around[T any](f *fate, name string, do func() (T, error)) (T, error) {
	f.pass(step("before " + name))
	result, err := do()
	f.pass(step("after " + name))
	return result, err
}

func aroundErr(f *fate, name string, do func() error) error {
	_, err := around(f, name, func() (struct{}, error) { return struct{}{}, do() })
	return err
}

// agentMain is the agent, until its standard input ends: with the test, that is.
func agentMain(text string) error {
	var c agentConfig
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	f := &fate{at: c.DieAt}
	f.left.Store(c.DieAfter)
	return bareagent.Agent{
		Node:    bareagent.Node(c.Subnet),
		RunDir:  c.RunDir,
		Socket:  c.Socket,
		IPAMDir: c.IPAMDir,
		Pods:    api{},
		Events:  &eventFile{path: c.Events},
		Bridge:  func(bridge ovs.Interface) ovs.Interface { return mortalBridge{bridge, f} },
		Dependencies: func(s *pods.Dependencies) {
			s.IPAM, s.Links, s.Switch, s.Store = mortalIPAM{s.IPAM, f}, mortalLinks{s.Links, f}, mortalSwitch{s.Switch, f}, mortalStore{s.Store, f}
			s.Macvlans = mortalMacvlans{s.Macvlans, f}
		},
	}.Run(ctx)
}

// The names of pods that the API has in an uncommon way.
const (
	ghost       = "ghost"       // is not there
	unreachable = "unreachable" // the API server does not answer

	router       = "router"       // begins the names of privileged pods that ask for a macvlan interface on the default route
	unprivileged = "unprivileged" // asks for one and is not privileged
)

// uidOf is the UID of the pod with that name.
func uidOf(name string) string { return "uid-of-" + name }

// api has every pod.
type api struct{}

func (api) Cached(_, name string) *corev1.Pod {
	if name == ghost || name == unreachable {
		return nil
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: apitypes.UID(uidOf(name))}}
	if privileged := strings.HasPrefix(name, router); privileged || name == unprivileged {
		pod.Annotations = map[string]string{networkv1.AssignMacvlanAnnotation: "true"}
		pod.Spec.Containers = []corev1.Container{{SecurityContext: &corev1.SecurityContext{Privileged: &privileged}}}
	}
	return pod
}

func (api) Local() []*corev1.Pod { return nil }

func (a api) Get(_ context.Context, namespace, name string) (*corev1.Pod, error) {
	switch name {
	case ghost:
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, name)
	case unreachable:
		return nil, apierrors.NewServerTimeout(schema.GroupResource{Resource: "pods"}, "get", 1)
	}
	return a.Cached(namespace, name), nil
}

// eventFile has a line for each Event.
type eventFile struct {
	mu   sync.Mutex
	path string
}

func (e *eventFile) WarnPod(p sandbox.Pod, reason, message string) {
	e.write("pod "+p.Name, reason, message)
}
func (e *eventFile) WarnNode(reason, message string) { e.write("node", reason, message) }

func (e *eventFile) write(about, reason, message string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	file, err := os.OpenFile(e.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = fmt.Fprintf(file, "%s: %s: %s\n", about, reason, strings.ReplaceAll(message, "\n", " "))
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "agent: event:", err)
	}
}

type mortalBridge struct {
	ovs.Interface
	*fate
}

func (b mortalBridge) Run(ctx context.Context, tx *ovs.Transaction) error {
	return aroundErr(b.fate, "bundle", func() error { return b.Interface.Run(ctx, tx) })
}

type mortalIPAM struct {
	pods.IPAM
	*fate
}

func (i mortalIPAM) Allocate(ctx context.Context, id, ifName string) ([]netip.Addr, error) {
	return around(i.fate, "allocate", func() ([]netip.Addr, error) { return i.IPAM.Allocate(ctx, id, ifName) })
}

func (i mortalIPAM) Sync(ctx context.Context, addrs []netip.Addr) error {
	return aroundErr(i.fate, "sync", func() error { return i.IPAM.Sync(ctx, addrs) })
}

func (i mortalIPAM) Release(ctx context.Context, id, ifName string) error {
	return aroundErr(i.fate, "release", func() error { return i.IPAM.Release(ctx, id, ifName) })
}

type mortalLinks struct {
	pods.Links
	*fate
}

func (l mortalLinks) Create(ctx context.Context, pod ns.NetNS, hostVeth string, i veth.Interface) error {
	return aroundErr(l.fate, "create", func() error { return l.Links.Create(ctx, pod, hostVeth, i) })
}

func (l mortalLinks) Configure(ctx context.Context, pod ns.NetNS, i veth.Interface) error {
	return aroundErr(l.fate, "configure", func() error { return l.Links.Configure(ctx, pod, i) })
}

func (l mortalLinks) Delete(ctx context.Context, hostVeth string) error {
	return aroundErr(l.fate, "delete", func() error { return l.Links.Delete(ctx, hostVeth) })
}

type mortalMacvlans struct {
	pods.Macvlans
	*fate
}

func (m mortalMacvlans) Create(ctx context.Context, pod ns.NetNS, i macvlan.Interface, parent string) error {
	return aroundErr(m.fate, "macvlan", func() error { return m.Macvlans.Create(ctx, pod, i, parent) })
}

func (m mortalMacvlans) Delete(ctx context.Context, pod ns.NetNS, i macvlan.Interface) error {
	return aroundErr(m.fate, "delete macvlan", func() error { return m.Macvlans.Delete(ctx, pod, i) })
}

type mortalSwitch struct {
	pods.Switch
	*fate
}

func (s mortalSwitch) AddPort(ctx context.Context, p ovs.Port) (ovs.Port, error) {
	return around(s.fate, "add port", func() (ovs.Port, error) { return s.Switch.AddPort(ctx, p) })
}

func (s mortalSwitch) DeletePort(ctx context.Context, name string) error {
	return aroundErr(s.fate, "delete port", func() error { return s.Switch.DeletePort(ctx, name) })
}

type mortalStore struct {
	podflows.Store
	*fate
}

// Update of a pod's flows: they are deleted, or set.
func (m mortalStore) Update(u flowstore.Update) []*flowstore.Commit {
	commits := m.Store.Update(u)
	for _, c := range u.Changes {
		if c.Compile == nil {
			m.pass("delete flows")
		} else {
			m.pass("set flows")
		}
	}
	return commits
}
