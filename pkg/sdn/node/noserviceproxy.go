package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
)

const (
	// noServiceProxyTime is how long a node may be without service proxy before that is reported: kube-proxy may start after the agent.
	noServiceProxyTime = 3 * time.Minute

	// foundInterval is the time from a check that finds a proxy to the next one. iptables-legacy reads all rules of kube-proxy, and the API server logs connections that
	// send nothing.
	foundInterval = 10 * time.Minute

	// apiService is the Service of the API server in namespace default, which each cluster has.
	apiService = "kubernetes"

	apiServiceTimeout = 5 * time.Second
)

// errNoAPIService is why it can't be known whether another program than kube-proxy balances services.
var errNoAPIService = errors.New("find the API server: no cluster IP of Service default/kubernetes is known")

// serviceProxySearch finds out whether a program other than br0 balances services on the node. Only kube-proxy's rules can be recognized. Other programs, such as those
// that use IPVS or eBPF, are found by the answer of the API server's Service.
type serviceProxySearch struct {
	rules    func() (place string, err error) // of kube-proxy
	services corelisters.ServiceLister
	connect  func(ctx context.Context, addr netip.AddrPort) error

	since time.Time // when the first of the checks found none; zero: the last one found a proxy
	found time.Time // when the last check found a proxy; zero: it found none
}

// newNoServiceProxyCheck returns the check for a node with --service-proxy=external on which no program balances services.
func newNoServiceProxyCheck(s *serviceProxySearch, warn func(reason string, err error)) *problemCheck {
	return &problemCheck{subject: "service proxy", find: s.find, reason: eventreason.NoServiceProxy, warn: warn, effect: "no service proxy on this node"}
}

// find returns an error if there has been no proxy for noServiceProxyTime.
func (s *serviceProxySearch) find(ctx context.Context) (none, failure error) {
	if !s.found.IsZero() && time.Since(s.found) < foundInterval {
		return nil, nil
	}
	place, err := s.rules()
	addr := s.apiServer()
	switch {
	case place == "" && !addr.IsValid():
		return nil, cmp.Or(err, errNoAPIService)
	case place != "" || s.connect(ctx, addr) == nil:
		s.since, s.found = time.Time{}, time.Now()
		return nil, nil
	case err != nil:
		return nil, err
	}
	s.found = time.Time{}
	if s.since.IsZero() {
		s.since = time.Now()
	}
	if time.Since(s.since) < noServiceProxyTime {
		return nil, nil
	}
	return fmt.Errorf("no service works on this node: kube-proxy has no rules in iptables or nftables, and Service %s/%s (%s) does not answer; start kube-proxy "+
		"on the node. Only if no node is to run kube-proxy, change all to ovsdn.io/service-proxy=ovs by the steps of docs/upgrade.md, which end connections through services. "+
		"If another program balances services here, only that Service fails: find out why, or ignore this", metav1.NamespaceDefault, apiService, addr), nil
}

// apiServer returns the address of the API server's Service, invalid if it is unknown.
func (s *serviceProxySearch) apiServer() netip.AddrPort {
	svc, err := s.services.Services(metav1.NamespaceDefault).Get(apiService)
	if err != nil { // not found
		return netip.AddrPort{}
	}
	addr, err := netip.ParseAddr(svc.Spec.ClusterIP)
	if err != nil {
		return netip.AddrPort{}
	}
	for _, p := range svc.Spec.Ports {
		if p.Protocol == corev1.ProtocolTCP || p.Protocol == "" {
			return netip.AddrPortFrom(addr, uint16(p.Port)) //nolint:gosec // validated by the API server
		}
	}
	return netip.AddrPort{}
}

// connectTCP opens a connection of TCP, and closes it.
func connectTCP(ctx context.Context, addr netip.AddrPort) error {
	dialer := net.Dialer{Timeout: apiServiceTimeout}
	conn, err := dialer.DialContext(ctx, "tcp", addr.String())
	if err != nil {
		return err
	}
	return conn.Close()
}
