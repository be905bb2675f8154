package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
	networkclient "github.com/openshift/client-go/network/clientset/versioned"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/test/apitest"
	"github.com/ovsdn/ovsdn/test/lab/controlplane"
)

// pair is two controllers as in a cluster: processes with the rights of deploy/rbac, on a real API server.
type pair struct {
	owner      *testing.T // with which the processes end
	kube       kubernetes.Interface
	network    networkclient.Interface
	kubeconfig string
	processes  []*process
	nodes      int
}

func newPair(t *testing.T) *pair {
	t.Helper()
	admin := apitest.Start(t)
	if err := controlplane.Apply(t.Context(), admin, os.DirFS("../../deploy/rbac")); err != nil {
		t.Fatal(err)
	}
	p := &pair{owner: t, kubeconfig: apitest.Kubeconfig(t, apitest.AsServiceAccount(admin, "ovsdn-system", "ovsdn-controller"))}
	p.kube, p.network = apitest.Clients(t, admin)
	p.add(t)
	p.add(t)
	return p
}

// add starts one more controller, and waits until it leads or waits for the lease.
func (p *pair) add(t *testing.T) {
	t.Helper()
	started := start(p.owner, "--kubeconfig", p.kubeconfig, "-v=2")
	started.waitLog(t, "Attempting to acquire leader lease")
	p.processes = append(p.processes, started)
	p.leader(t)
}

func (p *pair) lease(t *testing.T) *coordinationv1.Lease {
	t.Helper()
	lease, err := p.kube.CoordinationV1().Leases("ovsdn-system").Get(t.Context(), "ovsdn-controller", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

// leader waits until one controller holds the lease, and returns it and the other.
func (p *pair) leader(t *testing.T) (leader, other *process) {
	t.Helper()
	eventually(t, func() error {
		lease, err := p.kube.CoordinationV1().Leases("ovsdn-system").Get(t.Context(), "ovsdn-controller", metav1.GetOptions{})
		if err != nil {
			return err
		}
		leader, other = nil, nil
		for _, process := range p.processes {
			if h := lease.Spec.HolderIdentity; h != nil && *h != "" && strings.Contains(process.text(), *h) {
				leader = process
			} else {
				other = process
			}
		}
		if leader == nil {
			return errors.New("none of them leads")
		}
		return nil
	})
	return leader, other
}

// replace starts a controller in place of one that has ended.
func (p *pair) replace(t *testing.T, ended *process) {
	t.Helper()
	for i, process := range p.processes {
		if process == ended {
			p.processes = append(p.processes[:i], p.processes[i+1:]...)
		}
	}
	p.add(t)
}

// addNode creates a Node and returns its name.
func (p *pair) addNode(t *testing.T) string {
	t.Helper()
	p.nodes++
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("node", p.nodes)}}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("192.0.%d.%d", p.nodes/250, 1+p.nodes%250)}}
	if _, err := p.kube.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return node.Name
}

// served waits until the node has its subnet, and returns the duration.
func (p *pair) served(t *testing.T, node string) time.Duration {
	t.Helper()
	begin := time.Now()
	eventually(t, func() error {
		hs, err := p.network.NetworkV1().HostSubnets().Get(t.Context(), node, metav1.GetOptions{})
		if err == nil {
			_, err = config.ParseHostSubnet(hs)
		}
		return err
	})
	return time.Since(begin)
}

// allServed waits until every node has a subnet.
func (p *pair) allServed(t *testing.T) {
	t.Helper()
	eventually(t, func() error {
		list, err := p.network.NetworkV1().HostSubnets().List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		given := 0
		for _, hs := range list.Items {
			if !config.IsProposed(&hs) {
				given++
			}
		}
		if given != p.nodes {
			return fmt.Errorf("%d of %d nodes have a subnet", given, p.nodes)
		}
		return nil
	})
}

// noDuplicates fails the test if two allocated subnets overlap at any time until its end.
func (p *pair) noDuplicates(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	w, err := p.network.NetworkV1().HostSubnets().Watch(ctx, metav1.ListOptions{})
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	given := map[string]netip.Prefix{}
	var running sync.WaitGroup
	running.Go(func() {
		for e := range w.ResultChan() {
			hs, ok := e.Object.(*networkv1.HostSubnet)
			if !ok {
				if ctx.Err() == nil {
					t.Errorf("watch: %v", e)
				}
				return
			}
			delete(given, hs.Name)
			if e.Type == watch.Deleted || config.IsProposed(hs) {
				continue
			}
			subnet, err := netip.ParsePrefix(hs.Subnet)
			if err != nil {
				t.Error(err)
			}
			for name, other := range given {
				if other.Overlaps(subnet) {
					t.Errorf("%s has %s while %s has %s", hs.Name, subnet, name, other)
				}
			}
			given[hs.Name] = subnet
		}
	})
	t.Cleanup(func() {
		cancel()
		w.Stop()
		running.Wait()
	})
}

// TestTwoControllers stops the leader in several ways: the other controller allocates subnets for new nodes, and no subnet twice.
func TestTwoControllers(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: waits for leases to end, and bounds the time")
	}
	p := newPair(t)
	p.noDuplicates(t)
	p.served(t, p.addNode(t))
	t.Run("killed", p.testKilled)
	t.Run("terminated", p.testTerminated)
	t.Run("paused in the middle of its work", p.testPaused)
}

// testKilled kills the leader.
func (p *pair) testKilled(t *testing.T) {
	leader, _ := p.leader(t)
	leader.kill(t)
	took := p.served(t, p.addNode(t))
	t.Logf("a node had its subnet %v after the leader was killed", took)
	if took > 20*time.Second {
		t.Error("too late")
	}
	p.replace(t, leader)
}

// testTerminated ends the leader by SIGTERM.
func (p *pair) testTerminated(t *testing.T) {
	leader, _ := p.leader(t)
	was := *p.lease(t).Spec.HolderIdentity
	leader.signal(t, syscall.SIGTERM)
	leader.wantExit(t, exitOK)
	if now := p.lease(t).Spec.HolderIdentity; now != nil && *now == was {
		t.Error("the lease was not released")
	}
	took := p.served(t, p.addNode(t))
	t.Logf("a node had its subnet %v after the leader had stopped", took)
	if took > 8*time.Second { // a lease lasts ten
		t.Error("too late")
	}
	p.replace(t, leader)
}

// testPaused pauses the leader in the middle of its work.
func (p *pair) testPaused(t *testing.T) {
	leader, other := p.leader(t)
	before := p.lease(t)
	for range 40 {
		p.addNode(t)
	}
	leader.pause(t)
	took := p.served(t, p.addNode(t))
	t.Logf("a node had its subnet %v after the leader was paused", took)
	if took > 20*time.Second {
		t.Error("too late")
	}
	p.allServed(t)
	for range 10 {
		p.addNode(t)
	}
	leader.signal(t, syscall.SIGCONT)
	p.allServed(t)
	// After SIGCONT it does not take the lease back: it waits for the lease, as a new controller does.
	eventually(t, func() error {
		if strings.Count(leader.text(), "Attempting to acquire leader lease") < 2 {
			return errors.New("it has not noticed that it lost the lease")
		}
		return nil
	})
	if now, _ := p.leader(t); now != other {
		t.Error("the paused leader leads again")
	}
	after := p.lease(t)
	if got, want := *after.Spec.LeaseTransitions, *before.Spec.LeaseTransitions+1; got != want {
		t.Errorf("the lease changed hands %d times", got-*before.Spec.LeaseTransitions)
	}
	// It can become the leader again.
	other.signal(t, syscall.SIGTERM)
	other.wantExit(t, exitOK)
	p.served(t, p.addNode(t))
}
