// Package diagnosticsca has the authority of the certificates by which controllers, agents and kube-apiserver recognize each other: the leader creates,
// renews and publishes it, and each controller signs its own certificates with it (docs/decisions/0020-diagnostics.md).
package diagnosticsca

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/ovsdn/ovsdn/pkg/sdn/certificates"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// renewalInterval is the age at which a controller's own certificates are replaced: half of their lifetime.
const renewalInterval = 12 * time.Hour

// errNoAuthority is the error of connections before the Secret was read.
var errNoAuthority = errors.New("the diagnostics authority is not known yet: no leader has created Secret " +
	certificates.Namespace + "/" + certificates.ObjectName + ", or this controller may not read it (deploy/rbac)")

// Credentials are the certificates of this controller, leader or not. They are signed, in memory, with the authority of the Secret. If the Secret becomes
// invalid or is deleted, the last valid authority is used until the leader has replaced it.
type Credentials struct {
	secret cache.SharedIndexInformer

	mu        sync.Mutex
	authority *certificates.Authority
	client    *tls.Certificate
	serving   *tls.Certificate
	renewal   time.Time // of both
}

// NewCredentials returns credentials without an authority.
func NewCredentials(kube kubernetes.Interface) (*Credentials, error) {
	c := &Credentials{secret: newSecretInformer(kube)}
	if _, err := c.secret.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: c.update, UpdateFunc: func(_, o any) { c.update(o) }}); err != nil {
		return nil, fmt.Errorf("watch Secret: %w", err)
	}
	return c, nil
}

// newSecretInformer returns an informer of the one Secret: a controller has no right to list others.
func newSecretInformer(kube kubernetes.Interface) cache.SharedIndexInformer {
	return coreinformers.NewFilteredSecretInformer(kube, certificates.Namespace, 0, cache.Indexers{}, reconcile.OnlyNamed(certificates.ObjectName))
}

// Run watches the Secret until the context ends.
func (c *Credentials) Run(ctx context.Context) { c.secret.RunWithContext(ctx) }

func (c *Credentials) update(o any) {
	secret, ok := o.(*corev1.Secret)
	if !ok {
		return
	}
	authority, err := certificates.ParseAuthority(secret.Data[certificates.CertKey], secret.Data[certificates.KeyKey], time.Now())
	if err != nil {
		return // the leader reports and replaces it
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.authority == nil || !bytes.Equal(c.authority.Bundle(), authority.Bundle()) {
		c.authority, c.client, c.serving = authority, nil, nil
	}
}

// Authority returns the authority, nil before the Secret was read.
func (c *Credentials) Authority() *certificates.Authority {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.authority
}

// ServingCertificate returns the certificate by which kube-apiserver verifies this controller, nil before there is one.
func (c *Credentials) ServingCertificate() *tls.Certificate {
	_, _, serving, err := c.current(time.Now())
	if err != nil {
		return nil
	}
	return serving
}

// ClientTLS returns the configuration of a connection to the agent of a node. It is that of one connection: certificates are renewed. Without an
// authority, its handshakes fail.
func (c *Credentials) ClientTLS(nodeName string) *tls.Config {
	authority, client, _, err := c.current(time.Now())
	pool := x509.NewCertPool()
	if err == nil {
		pool = authority.Pool()
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, RootCAs: pool, ServerName: certificates.AgentServerName(nodeName),
		// Called also if the server names other authorities.
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return client, err },
	}
}

// current returns the authority and the certificates, which it renews.
func (c *Credentials) current(now time.Time) (authority *certificates.Authority, client, serving *tls.Certificate, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.authority == nil {
		return nil, nil, nil, errNoAuthority
	}
	if c.client == nil || c.serving == nil || !now.Before(c.renewal) {
		client, err := c.authority.Controller(now, false)
		if err != nil {
			return nil, nil, nil, err
		}
		serving, err := c.authority.Controller(now, true)
		if err != nil {
			return nil, nil, nil, err
		}
		c.client, c.serving, c.renewal = client, serving, now.Add(renewalInterval)
	}
	return c.authority, c.client, c.serving, nil
}
