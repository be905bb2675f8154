package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/lab"
)

// TestServiceProxyChanges changes a running cluster from kube-proxy to the switch and back, in the order of docs/upgrade.md, in a lab of its own. Pods, nodes and a host
// outside reach all endpoints at each stage. How long new connections failed is in the log.
func TestServiceProxyChanges(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: has a lab of its own")
	}
	shape := lab.Shape{ServiceProxy: lab.External, Mode: lab.NetworkPolicy, Install: fixture.Install(), ClusterIPs: true}
	s := newProxyChange(t, trioOn(t, &cluster{fixture.Own(t, "e2e-proxy", shape)}))
	s.reaches(t)
	t.Run("webhooks and aggregated APIs", func(t *testing.T) { testAPIServerClients(t, s.trio) })
	nodes := []string{fixture.Node1, fixture.Node2}
	each := func(do func(t *testing.T, node string)) func(*testing.T) {
		return func(t *testing.T) {
			for _, node := range nodes {
				do(t, node)
			}
		}
	}
	for _, stage := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"annotation ovs", func(t *testing.T) {
			since := time.Now()
			s.set(t, config.ServiceProxyOVS, nodes)
			each(func(t *testing.T, node string) { s.Warned(t, since, "Node", node, "kube-proxy has rules on this node") })(t)
		}},
		{"kube-proxy stopped", each(s.stopKubeProxy)},
		{"kube-proxy started", each(s.startKubeProxy)},
		{"annotation external", func(t *testing.T) { s.set(t, config.ServiceProxyExternal, nodes) }},
	} {
		t.Run(stage.name, func(t *testing.T) {
			probes := s.startProbes(t)
			stage.run(t)
			s.reaches(t)
			for _, p := range probes {
				p.stop(t)
			}
		})
	}
}

// proxyChange is a service with its clients, on a cluster that changes its service proxy.
type proxyChange struct {
	*trio
	clients   []end
	clusterIP netip.AddrPort
	external  []netip.AddrPort // node ports of both nodes, and an external IP
}

func newProxyChange(t *testing.T, x *trio) *proxyChange {
	t.Helper()
	external := netip.MustParseAddr("198.51.100.10")
	addr := x.Expose(t, x.namespace, "external", servicePort{Protocol: "TCP", Port: 80, Target: fixture.HTTPPort}, x.b, x.c)
	patch := fmt.Appendf(nil, `{"spec":{"type":"NodePort","externalIPs":[%q]}}`, external)
	svc, err := x.Kube.CoreV1().Services(x.namespace).Patch(t.Context(), "external", types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	nodePort := uint16(svc.Spec.Ports[0].NodePort)
	x.Output(t, lab.Outside, "ip", "route", "replace", external.String(), "via", x.Addr(t, fixture.Node1).String())
	return &proxyChange{
		trio:      x,
		clients:   []end{x.a.End(), x.nodeEnd(t, x.node1), {Name: "outside", NetNS: x.outside.NetNS, Addr: lab.OutsideAddr()}},
		clusterIP: netip.AddrPortFrom(addr, 80),
		external: []netip.AddrPort{
			netip.AddrPortFrom(x.Addr(t, fixture.Node1), nodePort), netip.AddrPortFrom(x.Addr(t, fixture.Node2), nodePort), netip.AddrPortFrom(external, 80),
		},
	}
}

// targets returns the addresses of the service for a client. Hosts outside have no route to cluster IPs.
func (s *proxyChange) targets(client end) []netip.AddrPort {
	if client.Name == "outside" {
		return s.external
	}
	return append([]netip.AddrPort{s.clusterIP}, s.external...)
}

// reaches checks that each client reaches both endpoints by each address.
func (s *proxyChange) reaches(t *testing.T) {
	t.Helper()
	for _, from := range s.clients {
		for _, to := range s.targets(from) {
			t.Run(from.Name+" to "+to.String(), func(t *testing.T) {
				reachesBoth(t, func(ctx context.Context) (string, error) {
					return fixture.HostnameHTTP(ctx, from.NetNS, to.Addr(), to.Port())
				})
			})
		}
	}
}

// set changes the service proxy of the cluster, and waits until the nodes have changed.
func (s *proxyChange) set(t *testing.T, proxy config.ServiceProxy, nodes []string) {
	t.Helper()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{config.ServiceProxyAnnotation: proxy}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Network.NetworkV1().ClusterNetworks().Patch(t.Context(), "default", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	balances := proxy == config.ServiceProxyOVS
	for _, node := range nodes {
		fixture.Eventually(t, fixture.ProgramTime, node+" has changed", func(ctx context.Context) error {
			groups, err := s.TryOutput(ctx, node, "ovs-ofctl", "-O", "OpenFlow15", "dump-groups", "br0")
			if err != nil {
				return err
			}
			if got := strings.Contains(groups, "group_id="); got != balances {
				return fmt.Errorf("groups of services exist: %t, want %t", got, balances)
			}
			tables, err := s.TryOutput(ctx, node, "nft", "list", "tables", "ip")
			if err != nil {
				return err
			}
			if strings.Contains(tables, "ovsdn-services") && !balances {
				return errors.New("the agent's table of services still exists")
			}
			return nil
		})
		s.condition(t, node, corev1.ConditionFalse, config.ReasonReady, fmt.Sprintf("service proxy %s", proxy))
	}
}

// stopKubeProxy stops kube-proxy and deletes its rules.
func (s *proxyChange) stopKubeProxy(t *testing.T, node string) {
	t.Helper()
	s.service(t, node, "kube-proxy", (*lab.Service).Stop)
	s.Output(t, node, "kube-proxy", "--cleanup")
	if tables := s.Output(t, node, "nft", "list", "tables", "ip"); strings.Contains(tables, "kube-proxy") {
		t.Errorf("%s: got tables %q after the cleanup, want none of kube-proxy", node, tables)
	}
}

// startKubeProxy returns when kube-proxy has written its rules.
func (s *proxyChange) startKubeProxy(t *testing.T, node string) {
	t.Helper()
	s.service(t, node, "kube-proxy", (*lab.Service).Start)
	fixture.Eventually(t, fixture.ProgramTime, "kube-proxy of "+node+" has its rules", func(ctx context.Context) error {
		rules, err := s.TryOutput(ctx, node, "nft", "list", "table", "ip", "kube-proxy")
		if err == nil && !strings.Contains(rules, s.clusterIP.Addr().String()) {
			err = errors.New("it does not have the service")
		}
		return err
	})
}

// proxyProbe opens a connection to a service every probeInterval.
type proxyProbe struct {
	name    string
	cancel  context.CancelFunc
	running sync.WaitGroup

	// The fields below belong to the prober until it has ended.
	opened, failed int
	first, last    time.Time // of failed connections
	err            error     // of the first of these
}

const (
	probeInterval = 100 * time.Millisecond
	probeTimeout  = time.Second
)

// startProbes starts a probe of each client and address.
func (s *proxyChange) startProbes(t *testing.T) (all []*proxyProbe) {
	t.Helper()
	for _, from := range s.clients {
		for _, to := range s.targets(from) {
			ctx, cancel := context.WithCancel(t.Context())
			p := &proxyProbe{name: from.Name + " to " + to.String(), cancel: cancel}
			p.running.Go(func() {
				p.run(ctx, func(ctx context.Context) error {
					_, err := fixture.HostnameHTTP(ctx, from.NetNS, to.Addr(), to.Port())
					return err
				})
			})
			t.Cleanup(func() { cancel(); p.running.Wait() })
			all = append(all, p)
		}
	}
	return all
}

func (p *proxyProbe) run(ctx context.Context, ask func(context.Context) error) {
	tick := time.NewTicker(probeInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		began := time.Now()
		within, done := context.WithTimeout(context.WithoutCancel(ctx), probeTimeout) // a connection outlives the end of the probe
		err := ask(within)
		done()
		p.opened++
		if err == nil {
			continue
		}
		if p.failed++; p.failed == 1 {
			p.first, p.err = began, err
		}
		p.last = time.Now()
	}
}

// stop ends the probe, and logs for how long connections failed.
func (p *proxyProbe) stop(t *testing.T) {
	t.Helper()
	p.cancel()
	p.running.Wait()
	switch {
	case p.opened == p.failed:
		t.Errorf("%s: all %d connections failed, the first: %v", p.name, p.failed, p.err)
	case p.failed > 0:
		t.Logf("%s: %d of %d connections failed, within %.1fs, the first: %v", p.name, p.failed, p.opened, p.last.Sub(p.first).Seconds(), p.err)
	default:
		t.Logf("%s: none of %d connections failed", p.name, p.opened)
	}
}
