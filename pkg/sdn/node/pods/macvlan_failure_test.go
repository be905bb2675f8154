package pods

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
	"github.com/ovsdn/ovsdn/test/tier"
)

// An ADD that fails, or whose runtime gives up, leaves nothing in the pod's namespace or on the node.
func TestMacvlan_failureIsCleanedUp(t *testing.T) {
	tier.Parallel(t)
	n := newNode(t)
	addLAN(t, n.host)
	before := devices(t, n.host)
	a, _ := n.start(t)
	pod := newNetns(t)
	req := n.addMacvlanPod("router", pod, uplinkName)
	wantClean := func(t *testing.T) {
		t.Helper()
		n.wantClean(t)
		if got := devices(t, pod); !slices.Equal(got, []string{"lo"}) {
			t.Errorf("got devices %v in the pod, want lo only", got)
		}
		if after := devices(t, n.host); !slices.Equal(after, before) {
			t.Errorf("got devices %v on the node, want %v", after, before)
		}
	}
	for _, point := range append(addPoints(), "before macvlan", "after macvlan") {
		if point == "after allocate" {
			continue // see TestAdd_failureIsCleanedUp
		}
		t.Run(point, func(t *testing.T) {
			a.faults.at(point, false)
			if _, err := a.Add(t.Context(), req); !errors.Is(err, errInjected) && code(err) != types.ErrIOFailure {
				t.Errorf("got %v, want the injected error", err)
			}
			wantClean(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			a.faults.cancelAt(point, cancel)
			if _, err := a.Add(ctx, req); err == nil {
				t.Error("ADD after its timeout: got no error")
			}
			wantClean(t)
		})
	}
	for _, point := range append(delPoints(), "before delete macvlan", "after delete macvlan") {
		t.Run("DEL "+point, func(t *testing.T) {
			add(t, a, req)
			a.faults.at(point, false)
			if err := a.Del(t.Context(), req); !errors.Is(err, errInjected) && code(err) != types.ErrIOFailure {
				t.Errorf("got %v, want the injected error", err)
			}
			del(t, a, req)
			wantClean(t)
		})
	}
}

// The agent is killed between two steps. The namespace remains, as with cnitool: DEL, or the next ADD, replaces what was left in it. Nothing is ever left on the node.
func TestMacvlan_killedAgent(t *testing.T) {
	tier.Parallel(t)
	for _, point := range append(addPoints(), "before macvlan", "after macvlan", "DEL before delete macvlan", "DEL after delete macvlan", "DEL after delete", "DEL before release") {
		for _, next := range []string{"DEL", "ADD"} {
			t.Run(point+", then "+next, func(t *testing.T) {
				n := newNode(t)
				addLAN(t, n.host)
				before := devices(t, n.host)
				pod := newNetns(t)
				req := n.addMacvlanPod("router", pod, uplinkName)
				first, stop := n.start(t)
				step, isDel := strings.CutPrefix(point, "DEL ")
				if isDel {
					add(t, first, req)
				}
				first.faults.at(step, true)
				call := func() error { _, err := first.Add(t.Context(), req); return err }
				if isDel {
					call = func() error { return first.Del(t.Context(), req) }
				}
				if call() == nil {
					t.Fatal("got no error, want the injected one")
				}
				stop()
				if got := slices.DeleteFunc(devices(t, n.host), sandbox.IsHostVeth); !slices.Equal(got, before) {
					t.Errorf("got devices %v on the node, want %v", got, before)
				}
				second, _ := n.start(t)
				if next == "ADD" {
					if len(second.Pods()) > 0 {
						del(t, second, req)
					}
					checkReq := check(t, req, add(t, second, req))
					noError(t, second.Check(t.Context(), checkReq))
				}
				del(t, second, req)
				n.wantClean(t)
				if got := devices(t, pod); !slices.Equal(got, []string{"lo"}) {
					t.Errorf("got devices %v in the pod, want lo only", got)
				}
			})
		}
	}
}

// DEL and GC of a pod whose namespace, parent or path no longer exists.
func TestMacvlan_removed(t *testing.T) {
	tier.Parallel(t)
	for name, remove := range map[string]func(t *testing.T, n *node, a *agent, req *cniserver.Request){
		"DEL": func(t *testing.T, _ *node, a *agent, req *cniserver.Request) { del(t, a, req) },
		"DEL without CNI_NETNS": func(t *testing.T, _ *node, a *agent, req *cniserver.Request) {
			c := *req
			c.Netns = ""
			del(t, a, &c)
		},
		"DEL of a deleted parent": func(t *testing.T, n *node, a *agent, req *cniserver.Request) {
			inNetns(t, n.host, func() error {
				uplink, err := netlinksafe.LinkByName(uplinkName)
				if err != nil {
					return err
				}
				return netlink.LinkDel(uplink)
			})
			del(t, a, req)
		},
		"GC": func(t *testing.T, _ *node, a *agent, req *cniserver.Request) {
			gc := &cniserver.Request{Command: cniserver.CommandGC, Config: []byte(`{"cniVersion":"1.1.0","name":"ovsdn","type":"ovsdn-cni","cni.dev/valid-attachments":[]}`)}
			noError(t, a.GC(t.Context(), gc))
			del(t, a, req) // as runtimes do
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			addLAN(t, n.host)
			a, _ := n.start(t)
			pod := newNetns(t)
			req := n.addMacvlanPod("router", pod, uplinkName)
			add(t, a, req)
			remove(t, n, a, req)
			n.wantClean(t)
			if got := devices(t, pod); !slices.Equal(got, []string{"lo"}) {
				t.Errorf("got devices %v in the pod, want lo only", got)
			}
			del(t, a, req)
		})
	}
	t.Run("namespace", func(t *testing.T) {
		n := newNode(t)
		addLAN(t, n.host)
		before := devices(t, n.host)
		a, _ := n.start(t)
		pod := newNetns(t)
		req := n.addMacvlanPod("router", pod, uplinkName)
		add(t, a, req)
		noError(t, pod.Close())
		del(t, a, req)
		n.wantClean(t)
		if after := devices(t, n.host); !slices.Equal(after, before) {
			t.Errorf("got devices %v on the node, want %v", after, before)
		}
	})
}

// DEL fails, and is repeated, while the namespace can't be opened for another reason than that it does not exist.
func TestMacvlan_namespaceNotOpened(t *testing.T) {
	n := newNode(t)
	addLAN(t, n.host)
	a, _ := n.start(t)
	pod := newNetns(t)
	req := n.addMacvlanPod("router", pod, uplinkName)
	add(t, a, req)
	links := a.links
	a.links = closedLinks{links}
	if err := a.Del(t.Context(), req); !errors.Is(err, unix.EMFILE) && code(err) == 0 {
		t.Errorf("DEL: got %v, want the error of Open", err)
	}
	macvlanOfPod(t, pod)
	a.links = links
	del(t, a, req)
	n.wantClean(t)
	if got := devices(t, pod); !slices.Equal(got, []string{"lo"}) {
		t.Errorf("got devices %v in the pod, want lo only", got)
	}
}

// A failed ADD of a pod without a macvlan interface does not open its namespace again.
func TestMacvlan_cleanUpOfOthers(t *testing.T) {
	n := newNode(t)
	a, _ := n.start(t)
	req := n.addPod("plain", newNetns(t))
	a.links = &openOnce{Links: a.links}
	a.faults.at("before configure", false)
	if _, err := a.Add(t.Context(), req); !errors.Is(err, errInjected) {
		t.Errorf("ADD: got %v, want the injected error", err)
	}
	n.wantClean(t)
}

// closedLinks can't open a namespace.
type closedLinks struct{ Links }

func (closedLinks) Open(string) (ns.NetNS, error) { return nil, unix.EMFILE }

// openOnce can open one namespace.
type openOnce struct {
	Links
	opened bool
}

func (l *openOnce) Open(path string) (ns.NetNS, error) {
	if l.opened {
		return nil, unix.EMFILE
	}
	l.opened = true
	return l.Links.Open(path)
}

// An interface macvlan0 that ADD did not create is neither replaced nor deleted.
func TestMacvlan_nameInUse(t *testing.T) {
	n := newNode(t)
	addLAN(t, n.host)
	a, _ := n.start(t)
	pod := newNetns(t)
	addDevice(t, pod, sandbox.MacvlanName)
	req := n.addMacvlanPod("router", pod, uplinkName)
	if _, err := a.Add(t.Context(), req); err == nil || !strings.Contains(err.Error(), "already has an interface macvlan0") {
		t.Errorf("ADD: got %v, want that the name is in use", err)
	}
	del(t, a, req)
	n.wantClean(t)
	if got := devices(t, pod); !slices.Equal(got, []string{"lo", sandbox.MacvlanName}) {
		t.Errorf("got devices %v in the pod, want the other program's", got)
	}
}
