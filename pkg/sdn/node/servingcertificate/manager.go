// Package servingcertificate gets the agent's serving certificate from the controllers, and the authority of their client certificates
// (docs/decisions/0020-diagnostics.md). Nothing of the pod network depends on it.
package servingcertificate

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/certificates"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

const (
	// Pauses after a refused or failed request: a cluster of agents whose requests are refused creates few objects.
	minBackoff = 10 * time.Second
	maxBackoff = 10 * time.Minute
	// Intervals of reads of a pending request.
	minPoll = time.Second
	maxPoll = time.Minute
	// maxSpread is the time in which all agents renew their certificates after a change of the authority.
	maxSpread = 2 * time.Minute
	// checkInterval bounds the time until a renewal is found to be due after a change of the clock.
	checkInterval = time.Hour
)

// Manager has the certificate and the authority of one agent. It is safe for concurrent use.
type Manager struct {
	kube      kubernetes.Interface
	node      string
	configMap cache.SharedIndexInformer
	spread    time.Duration

	changed chan struct{} // of hostIP or authorities

	mu          sync.Mutex
	hostIP      netip.Addr
	authorities []*x509.Certificate
	pool        *x509.CertPool // of authorities; nil: none
	current     *tls.Certificate
	renewal     time.Time
}

// New returns a manager for the node's agent, without a certificate or authority.
func New(kube kubernetes.Interface, node string) (*Manager, error) {
	m := &Manager{
		kube: kube, node: node, spread: maxSpread, changed: make(chan struct{}, 1),
		configMap: coreinformers.NewFilteredConfigMapInformer(kube, certificates.Namespace, 0, cache.Indexers{}, reconcile.OnlyNamed(certificates.ObjectName)),
	}
	if _, err := m.configMap.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: m.update, UpdateFunc: func(_, o any) { m.update(o) }, DeleteFunc: func(any) { m.setAuthorities(nil) },
	}); err != nil {
		return nil, fmt.Errorf("watch ConfigMap: %w", err)
	}
	return m, nil
}

// SetHostIP sets the address of the node's HostSubnet, without which there is no certificate.
func (m *Manager) SetHostIP(addr netip.Addr) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.hostIP != addr {
		m.hostIP = addr
		m.wake()
	}
}

// ServingCertificate returns the certificate of the agent, nil before there is one.
func (m *Manager) ServingCertificate() *tls.Certificate {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.current
}

// ClientCAs returns the authorities of the controllers' client certificates, nil if there is none: then no client is accepted.
func (m *Manager) ClientCAs() *x509.CertPool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pool
}

func (m *Manager) update(o any) {
	if configMap, ok := o.(*corev1.ConfigMap); ok {
		authorities, err := certificates.ParseBundle([]byte(configMap.Data[certificates.BundleKey]))
		if err != nil {
			authorities = nil // without a valid authority no client is accepted; the leader repairs the ConfigMap
		}
		m.setAuthorities(authorities)
	}
}

func (m *Manager) setAuthorities(authorities []*x509.Certificate) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.authorities, m.pool = authorities, nil
	if len(authorities) > 0 {
		m.pool = certificates.NewPool(authorities)
	}
	m.wake()
}

func (m *Manager) wake() {
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

// Run watches the authority and renews the certificate until the context ends. It never gives up.
func (m *Manager) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { m.configMap.RunWithContext(ctx) })
	backoff := newBackoff()
	for ctx.Err() == nil {
		pause, hostIP := m.untilRenewal(time.Now())
		if pause > 0 {
			m.wait(ctx, pause, m.changed)
			continue
		}
		if m.ServingCertificate() != nil && m.spread > 0 {
			m.wait(ctx, rand.N(m.spread), nil) //nolint:gosec // no secret
		}
		err := m.renew(ctx, hostIP)
		if err == nil {
			backoff = newBackoff()
			continue
		}
		if ctx.Err() != nil {
			return
		}
		retryAfter := backoff.Step()
		klog.FromContext(ctx).Error(err, "Failed to get the agent's serving certificate", "retryAfter", retryAfter,
			"effect", "kubectl ovsdn can't read the state of this node; pods are not affected")
		m.wait(ctx, retryAfter, nil)
	}
}

func newBackoff() wait.Backoff {
	return wait.Backoff{Duration: minBackoff, Cap: maxBackoff, Factor: 2, Jitter: 0.5, Steps: 20}
}

// wait waits for the pause, or until the channel has a value.
func (m *Manager) wait(ctx context.Context, pause time.Duration, changed <-chan struct{}) {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-changed:
	case <-ctx.Done():
	}
}

// untilRenewal returns the time until the certificate is to be renewed, and the address that it needs.
func (m *Manager) untilRenewal(now time.Time) (time.Duration, netip.Addr) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case !m.hostIP.IsValid():
		return checkInterval, m.hostIP
	case m.current == nil:
		return 0, m.hostIP
	case len(m.authorities) > 0 && certificates.VerifyAgent(m.current.Leaf, m.authorities, m.node, m.hostIP, now) != nil:
		return 0, m.hostIP
	}
	return min(max(m.renewal.Sub(now), 0), checkInterval), m.hostIP
}

// renew requests a certificate and waits for it.
func (m *Manager) renew(ctx context.Context, hostIP netip.Addr) error {
	content, key, err := certificates.NewRequest(m.node, hostIP)
	if err != nil {
		return err
	}
	request, err := m.kube.CertificatesV1().CertificateSigningRequests().Create(ctx, &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "ovsdn-agent-"},
		Spec:       certificatesv1.CertificateSigningRequestSpec{Request: content, SignerName: certificates.SignerName, Usages: certificates.AgentUsages()},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create CertificateSigningRequest: %w", err)
	}
	signed, err := m.awaitSigned(ctx, request.Name)
	if err != nil {
		return fmt.Errorf("CertificateSigningRequest %s: %w", request.Name, err)
	}
	pair, err := certificates.Pair(signed, key)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	lifetime := time.Until(pair.Leaf.NotAfter)
	m.current, m.renewal = pair, time.Now().Add(lifetime*2/3+rand.N(max(lifetime/10, 1))) //nolint:gosec // no secret
	klog.FromContext(ctx).Info("Got the agent's serving certificate", "notAfter", pair.Leaf.NotAfter)
	if len(m.authorities) > 0 {
		// The ConfigMap may be late: without an error, requests would follow one another until it is not.
		return certificates.VerifyAgent(pair.Leaf, m.authorities, m.node, m.hostIP, time.Now())
	}
	return nil
}

// awaitSigned returns the certificate. It reads the request at growing intervals: a watch would need the right to list the requests of all.
func (m *Manager) awaitSigned(ctx context.Context, name string) ([]byte, error) {
	poll := wait.Backoff{Duration: minPoll, Cap: maxPoll, Factor: 1.5, Jitter: 0.2, Steps: 20}
	for {
		m.wait(ctx, poll.Step(), nil)
		request, err := m.kube.CertificatesV1().CertificateSigningRequests().Get(ctx, name, metav1.GetOptions{})
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case apierrors.IsNotFound(err) || apierrors.IsForbidden(err):
			return nil, err
		case err != nil:
			continue // the request may be signed although the API server does not answer
		}
		for _, c := range request.Status.Conditions {
			if c.Type == certificatesv1.CertificateDenied || c.Type == certificatesv1.CertificateFailed {
				return nil, fmt.Errorf("refused: %s", config.Shorten(c.Message))
			}
		}
		if len(request.Status.Certificate) > 0 {
			return request.Status.Certificate, nil
		}
	}
}
