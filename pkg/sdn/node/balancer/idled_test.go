package balancer

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	unidlingv1alpha1 "github.com/openshift/api/unidling/v1alpha1"
	corev1 "k8s.io/api/core/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/endpoints"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
	"github.com/ovsdn/ovsdn/test/await"
)

// Hold implements Idling. It records whether the service's flows are stored already.
func (f *fixture) Hold(key string, _ *endpoints.Service, frontends []pipeline.Frontend) {
	if f.store.Compiled(pipeline.Owner{Kind: pipeline.KindService, Key: key}) != nil { // in mode multitenant
		f.record("hold with flows " + key)
	}
	if len(frontends) == 0 {
		f.record("hold without frontends " + key)
	}
	f.record("hold " + key)
}

// Release implements Idling. It records whether the flows of the endpoint are on the switch.
func (f *fixture) Release(key string, send bool) {
	installed := strings.Contains(strings.Join(f.bridge.Flows(), "\n"), "nat(dst=10.128.0.5:8080)")
	f.record(fmt.Sprintf("release %s send=%v installed=%v", key, send, installed))
}

func (f *fixture) record(call string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if n := len(f.idling); n == 0 || f.idling[n-1] != call {
		f.idling = append(f.idling, call)
	}
}

func (f *fixture) wantCalls(step string, want ...string) {
	f.Helper()
	await.OK(f, timeout, func(context.Context) error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if !slices.Equal(f.idling, want) {
			return fmt.Errorf("%s: got calls %q, want %q", step, f.idling, want)
		}
		return nil
	})
}

func idledService() *corev1.Service {
	svc := service(nil)
	svc.Annotations = map[string]string{unidlingv1alpha1.IdledAtAnnotation: "2026-01-02T03:04:05Z"}
	return svc
}

// TestBalancer_idled follows a service that is idled, gets an endpoint, loses it, and is deleted.
func TestBalancer_idled(t *testing.T) {
	f := newFixture(t, config.ModeNetworkPolicy)
	const toAgent = "tcp,nw_dst=172.30.0.10,tp_dst=80,tcp_flags=+syn-ack,actions=goto_table:71"
	f.services.Add(idledService())
	f.expect("idled", []string{none, toAgent})
	f.wantCalls("idled", "hold ns/svc")
	f.slices.Add(slice("a", "web", corev1.ProtocolTCP, 8080, "10.128.0.5"))
	f.expect("an endpoint", []string{toA}, toAgent)
	calls := []string{"hold ns/svc", "release ns/svc send=true installed=true"}
	f.wantCalls("an endpoint", calls...)
	f.slices.Modify(slice("a", "web", corev1.ProtocolTCP, 8080))
	f.expect("idled again", []string{toAgent}, toA)
	calls = append(calls, "hold ns/svc")
	f.wantCalls("idled again", calls...)
	f.services.Delete(service(nil))
	f.expect("deleted", nil, "172.30.0.10", "goto_table:71")
	f.wantCalls("deleted", append(calls, "release ns/svc send=false installed=false")...)
}

// Packets are held before the switch can send the first.
func TestBalancer_holdsBeforeFlows(t *testing.T) {
	f := newFixture(t, config.ModeMultitenant)
	publish(f, 17)
	f.services.Add(idledService())
	f.expect("idled", []string{"goto_table:71"})
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.idling) == 0 || f.idling[0] != "hold ns/svc" {
		t.Errorf("got calls %q, want the first before the flows are stored", f.idling)
	}
}

// releases records the calls of Release.
type releases []string

// Hold implements Idling.
func (r *releases) Hold(string, *endpoints.Service, []pipeline.Frontend) {}

// Release implements Idling.
func (r *releases) Release(key string, send bool) {
	*r = append(*r, fmt.Sprintf("%s send=%v", key, send))
}

// A service with endpoints, whose flows the switch lacks for a time, is released by the retry.
func TestBalancer_releasesAfterRetry(t *testing.T) {
	empty := []pipeline.Frontend{{Kind: pipeline.ClusterIP}}
	full := []pipeline.Frontend{{Kind: pipeline.ClusterIP, Endpoints: []netip.AddrPort{netip.MustParseAddrPort("10.128.0.5:8080")}}}
	temporary := errors.New("no answer")
	for name, tc := range map[string]struct {
		of   compiled
		err  error
		want releases
	}{
		"idled":              {compiled{frontends: empty, idled: true}, nil, nil},
		"endpoints":          {compiled{frontends: full}, nil, releases{"ns/svc send=true"}},
		"temporary error":    {compiled{frontends: full}, temporary, nil},
		"without a VNID":     {compiled{frontends: full}, fmt.Errorf("install: %w", &flowstore.MissingInputError{}), releases{"ns/svc send=false"}},
		"no endpoints":       {compiled{frontends: empty}, nil, releases{"ns/svc send=false"}},
		"deleted, and error": {compiled{}, temporary, releases{"ns/svc send=false"}},
	} {
		var got releases
		b := &Balancer{idling: &got}
		b.release("ns/svc", tc.of, tc.err)
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: got calls %q, want %q", name, got, tc.want)
		}
	}
}

func TestIdledServices(t *testing.T) {
	type call struct {
		after            time.Duration
		annotated, empty bool
		idled            bool
		left             time.Duration
	}
	for name, calls := range map[string][]call{
		"never":            {{0, false, true, false, 0}},
		"with endpoints":   {{0, true, false, false, 0}},
		"until it is full": {{0, true, true, true, 0}, {time.Hour, true, false, false, 0}, {0, false, true, false, 0}},
		"while pods start": {
			{0, true, true, true, 0}, {time.Hour, false, true, true, wakeTime}, {time.Second, false, true, true, wakeTime - time.Second}, {0, false, false, false, 0},
		},
		"no pods start": {
			{0, true, true, true, 0}, {0, false, true, true, wakeTime}, {wakeTime, false, true, false, 0}, {0, false, true, false, 0}, {0, true, true, true, 0},
		},
		"idled again": {{0, true, true, true, 0}, {0, false, true, true, wakeTime}, {0, true, true, true, 0}, {wakeTime, true, true, true, 0}},
	} {
		services, now := idledServices{}, time.Now()
		for i, c := range calls {
			now = now.Add(c.after)
			if idled, left := services.set("ns/svc", c.annotated, c.empty, now); idled != c.idled || left != c.left {
				t.Errorf("%s: call %d: got %v for %v, want %v for %v", name, i, idled, left, c.idled, c.left)
			}
		}
		if last := calls[len(calls)-1]; !last.idled && len(services) > 0 {
			t.Errorf("%s: got %v, want no service", name, services)
		}
	}
}

// The host sends packets of hosts outside to an idled service to the switch, which sends those to a port that is open to them to the agent.
func TestCompile_idled(t *testing.T) {
	b := balancerOf(t, slice("a", "web", corev1.ProtocolTCP, 8080))
	b.idling, b.idled, b.loop = &fixture{}, idledServices{}, reconcile.New("services", b.reconcile)
	svc := idledService()
	svc.Spec.Type, svc.Spec.ExternalIPs = corev1.ServiceTypeNodePort, []string{"198.51.100.10"}
	svc.Spec.Ports = []corev1.ServicePort{{Name: "other", Protocol: corev1.ProtocolTCP, Port: 80, NodePort: 30080}}
	c := b.compile(t.Context(), b.candidate("ns/svc", endpoints.NewService(svc)))
	kinds := map[pipeline.FrontendKind]int{}
	for _, f := range c.frontends {
		if !f.Idled || len(f.Endpoints) > 0 {
			t.Errorf("got frontend %+v, want an idled one", f)
		}
		kinds[f.Kind]++
	}
	for _, kind := range []pipeline.FrontendKind{pipeline.ClusterIP, pipeline.FromOutside, pipeline.NodePort, pipeline.ExternalIP} {
		if kinds[kind] != 1 {
			t.Errorf("got frontends %+v, want one of kind %d", c.frontends, kind)
		}
	}
	if !c.idled || len(c.host) != 2 {
		t.Errorf("got idled %v and frontends of the host %+v, want 2", c.idled, c.host)
	}
	for _, f := range c.host {
		if f.Verdict != endpoints.Forward || f.To != netip.MustParseAddrPort("172.30.0.10:80") {
			t.Errorf("got frontend of the host %+v, want one to the cluster IP", f)
		}
	}
	delete(svc.Annotations, unidlingv1alpha1.IdledAtAnnotation)
	if !b.compile(t.Context(), b.candidate("ns/svc", endpoints.NewService(svc))).idled {
		t.Error("got a service that is not idled after its annotation was removed, want one until its pods have started")
	}
	if b.compile(t.Context(), b.candidate("ns/svc", nil)).idled || len(b.idled) > 0 {
		t.Errorf("got idled services %v after the deletion, want none", b.idled)
	}
}
