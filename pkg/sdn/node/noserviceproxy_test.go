package node

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
)

// noServiceProxy is a check of a host whose rules and services the test sets.
type noServiceProxy struct {
	*problemCheck
	search   *serviceProxySearch
	services cache.Indexer
	place    string // of kube-proxy's rules
	readErr  error
	answers  bool // the API server's Service
	dialed   []netip.AddrPort
	events   []string
}

func newNoServiceProxy() *noServiceProxy {
	n := &noServiceProxy{services: cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})}
	n.search = &serviceProxySearch{
		rules:    func() (string, error) { return n.place, n.readErr },
		services: corelisters.NewServiceLister(n.services),
		connect: func(_ context.Context, addr netip.AddrPort) error {
			if n.dialed = append(n.dialed, addr); n.answers {
				return nil
			}
			return errors.New("timeout")
		},
	}
	n.problemCheck = newNoServiceProxyCheck(n.search, func(reason string, err error) { n.events = append(n.events, reason+" "+err.Error()) })
	return n
}

func (n *noServiceProxy) addAPIService(t *testing.T) {
	must(t, n.services.Add(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "kubernetes"},
		Spec:       corev1.ServiceSpec{ClusterIP: "172.30.0.1", Ports: []corev1.ServicePort{{Port: 53, Protocol: corev1.ProtocolUDP}, {Port: 443}}},
	}))
}

// A node on which no program balances services has an Event after three minutes. kube-proxy's rules, or an answer of the API server's Service, end them, and while
// neither can be found out nothing changes.
func TestNoServiceProxyCheck(t *testing.T) {
	const iptables = "chain KUBE-SERVICES of iptables"
	synctest.Test(t, func(t *testing.T) {
		n := newNoServiceProxy()
		n.addAPIService(t)
		for _, step := range []struct {
			name    string
			place   string
			answers bool
			err     error
			wait    time.Duration // before the check
			events  int
			effect  bool
		}{
			{name: "none"},
			{name: "starts late", place: iptables, wait: time.Minute},
			{name: "not checked yet", wait: 9 * time.Minute},
			{name: "none again", wait: time.Minute},
			{name: "not long", wait: 2 * time.Minute},
			{name: "for three minutes", wait: time.Minute, events: 1, effect: true},
			{name: "the same", wait: time.Minute, events: 1, effect: true},
			{name: "not read", err: errors.New("netlink"), wait: time.Minute, events: 1, effect: true},
			{name: "another proxy", answers: true, wait: time.Minute, events: 1},
			{name: "it has ended", wait: 10 * time.Minute, events: 1},
			{name: "for three minutes again", wait: 3 * time.Minute, events: 2, effect: true},
			{name: "kube-proxy", place: iptables, wait: time.Minute, events: 2},
		} {
			time.Sleep(step.wait) //nolint:forbidigo // the bubble's clock
			n.place, n.answers, n.readErr = step.place, step.answers, step.err
			n.check(t.Context())
			if got := n.condition(); len(n.events) != step.events || (got != "") != step.effect {
				t.Fatalf("%s: got effect %q and Events %q, want an effect: %t, and %d Events", step.name, got, n.events, step.effect, step.events)
			}
		}
		const prefix, among = eventreason.NoServiceProxy + " no service works on this node:", "Service default/kubernetes (172.30.0.1:443) does not answer; start kube-proxy"
		if got := n.events[0]; !strings.HasPrefix(got, prefix) || !strings.Contains(got, among) {
			t.Errorf("got Event %q, want one with %q and %q", got, prefix, among)
		}
	})
}

// Where it can't be known, there is no Event: before the Service is known, and when the agent stops. kube-proxy's rules need no connection.
func TestNoServiceProxyCheck_unknown(t *testing.T) {
	n := newNoServiceProxy()
	n.search.since = time.Now().Add(-time.Hour)
	if n.check(t.Context()); len(n.events) > 0 || len(n.dialed) > 0 {
		t.Errorf("without Service kubernetes: got Events %q and connections to %v, want none", n.events, n.dialed)
	}
	n.addAPIService(t)
	n.place = "table ip kube-proxy of nftables"
	if n.check(t.Context()); len(n.dialed) > 0 {
		t.Errorf("with kube-proxy's rules: got connections to %v, want none", n.dialed)
	}
	n.place, n.search.since, n.search.found = "", time.Now().Add(-time.Hour), time.Time{}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	if n.check(stopped); len(n.events) > 0 {
		t.Errorf("while the agent stops: got Events %q, want none", n.events)
	}
}

func TestConnectTCP(t *testing.T) {
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	addr := netip.MustParseAddrPort(listener.Addr().String())
	must(t, connectTCP(t.Context(), addr))
	must(t, listener.Close())
	if err := connectTCP(t.Context(), addr); err == nil {
		t.Error("got no error at a closed port")
	}
}
