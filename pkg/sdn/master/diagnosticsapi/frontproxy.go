package diagnosticsapi

import (
	"context"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/cert"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/metrics"
)

// The ConfigMap in which the API server publishes how its front proxy authenticates.
const (
	authenticationNamespace = metav1.NamespaceSystem
	authenticationConfigMap = "extension-apiserver-authentication"

	caKey             = "requestheader-client-ca-file"
	allowedNamesKey   = "requestheader-allowed-names"
	userHeadersKey    = "requestheader-username-headers"
	uidHeadersKey     = "requestheader-uid-headers"
	groupHeadersKey   = "requestheader-group-headers"
	extraHeaderPrefix = "requestheader-extra-headers-prefix"
)

// Limits of a client's certificates, whose verification costs processor time before the client is known.
const (
	maxChain       = 5
	maxRSABits     = 4096
	maxRSAExponent = 1<<16 + 1 // that of nearly all keys
)

// user is the client of the API server for which its front proxy sends a request.
type user struct {
	name, uid string
	groups    []string
	extra     map[string]authorizationv1.ExtraValue
}

// requestHeaders is the content of the ConfigMap.
type requestHeaders struct {
	roots                    *x509.CertPool
	names                    []string // common names of accepted certificates; empty: all of the CA
	user, uid, group, extras []string // headers, and prefixes of headers
}

// parseRequestHeaders parses the ConfigMap. It returns nil if the API server has no front proxy.
func parseRequestHeaders(o *corev1.ConfigMap) (*requestHeaders, error) {
	ca, ok := o.Data[caKey]
	if !ok {
		return nil, nil
	}
	certificates, err := cert.ParseCertsPEM([]byte(ca))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", caKey, err)
	}
	h := &requestHeaders{roots: x509.NewCertPool()}
	for _, c := range certificates {
		h.roots.AddCert(c)
	}
	for key, list := range map[string]*[]string{
		allowedNamesKey: &h.names, userHeadersKey: &h.user, uidHeadersKey: &h.uid, groupHeadersKey: &h.group, extraHeaderPrefix: &h.extras,
	} {
		value, ok := o.Data[key]
		if !ok {
			continue
		}
		if err := json.Unmarshal([]byte(value), list); err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		if key != allowedNamesKey && slices.Contains(*list, "") {
			return nil, fmt.Errorf("%s: has an empty header", key)
		}
	}
	if len(h.user) == 0 {
		return nil, fmt.Errorf("%s: has no header", userHeadersKey)
	}
	return h, nil
}

// verify returns an error unless the client's certificate is one of the front proxy. The handshake has verified that the client has its key.
func (h *requestHeaders) verify(chain []*x509.Certificate, now time.Time) error {
	if len(chain) == 0 {
		return errors.New("a client certificate of the front proxy is required; send requests to the API server, which forwards them")
	}
	if len(chain) > maxChain {
		return fmt.Errorf("the client sent %d certificates, want at most %d", len(chain), maxChain)
	}
	intermediates := x509.NewCertPool()
	for _, c := range chain[1:] {
		// Before any signature is verified with it: the client has chosen the key.
		if key, ok := c.PublicKey.(*rsa.PublicKey); ok && (key.N.BitLen() > maxRSABits || key.E > maxRSAExponent) {
			return errors.New("an intermediate certificate of the client has an RSA key that is too large")
		}
		intermediates.AddCert(c)
	}
	options := x509.VerifyOptions{Roots: h.roots, Intermediates: intermediates, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	if _, err := chain[0].Verify(options); err != nil {
		return fmt.Errorf("verify client certificate with %s of ConfigMap %s/%s: %w", caKey, authenticationNamespace, authenticationConfigMap, err)
	}
	if name := chain[0].Subject.CommonName; len(h.names) > 0 && !slices.Contains(h.names, name) {
		return fmt.Errorf("the common name %.64q of the client certificate is not in %s of ConfigMap %s/%s",
			name, allowedNamesKey, authenticationNamespace, authenticationConfigMap)
	}
	return nil
}

// userOf returns the user in the headers of a request whose certificate was verified. Its name is "" if the headers have none.
func (h *requestHeaders) userOf(header http.Header) user {
	u := user{name: first(header, h.user), uid: first(header, h.uid)}
	for _, name := range h.group {
		for _, value := range header.Values(name) {
			if value != "" {
				u.groups = append(u.groups, value)
			}
		}
	}
	for _, prefix := range h.extras {
		for name, values := range header {
			if len(name) < len(prefix) || !strings.EqualFold(name[:len(prefix)], prefix) {
				continue
			}
			key := strings.ToLower(name[len(prefix):])
			if decoded, err := url.PathUnescape(key); err == nil {
				key = decoded
			}
			if u.extra == nil {
				u.extra = map[string]authorizationv1.ExtraValue{}
			}
			u.extra[key] = append(u.extra[key], values...)
		}
	}
	return u
}

// first returns the first value that is not empty of the headers.
func first(header http.Header, names []string) string {
	for _, name := range names {
		if value := header.Get(name); value != "" {
			return value
		}
	}
	return ""
}

// frontProxy authenticates users by the current content of the ConfigMap. Without a valid one it accepts no client.
type frontProxy struct {
	headers  atomic.Pointer[requestHeaders]
	hasRead  func() bool // the API server was asked for the ConfigMap
	now      func() time.Time
	refusals metrics.FailureLog
}

// update replaces the configuration. Invalid content retains the last valid one.
func (p *frontProxy) update(ctx context.Context, obj any) {
	o, ok := obj.(*corev1.ConfigMap)
	if !ok || o.Namespace != authenticationNamespace || o.Name != authenticationConfigMap {
		return
	}
	headers, err := parseRequestHeaders(o)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Invalid configuration of the front proxy", "configMap", klog.KObj(o),
			"effect", "the last valid one is used, or no client is accepted")
		return
	}
	p.headers.Store(headers)
}

// watch follows the informer of the ConfigMap. Without it, no client is accepted.
func (p *frontProxy) watch(ctx context.Context, informer cache.SharedIndexInformer) error {
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { p.update(ctx, obj) },
		UpdateFunc: func(_, now any) { p.update(ctx, now) },
		DeleteFunc: func(any) { p.headers.Store(nil) },
	})
	if err != nil {
		return fmt.Errorf("watch ConfigMap %s/%s: %w", authenticationNamespace, authenticationConfigMap, err)
	}
	p.hasRead = registration.HasSynced
	return nil
}

// authenticate returns the user of the request. Headers count only with a valid certificate of the front proxy.
func (p *frontProxy) authenticate(r *http.Request) (user, error) {
	headers := p.headers.Load()
	if headers == nil {
		if !p.hasRead() {
			return user{}, fmt.Errorf("the controller has not read ConfigMap %s/%s yet; retry later", authenticationNamespace, authenticationConfigMap)
		}
		return user{}, fmt.Errorf("ConfigMap %s/%s has no valid %s, so no client is accepted; start the API server with --requestheader-client-ca-file",
			authenticationNamespace, authenticationConfigMap, caKey)
	}
	var chain []*x509.Certificate
	if r.TLS != nil {
		chain = r.TLS.PeerCertificates
	}
	if err := headers.verify(chain, p.now()); err != nil {
		if len(chain) > 0 {
			p.refusals.Log(r.Context(), err, "Refused a client certificate for the diagnostics API")
		}
		return user{}, err
	}
	u := headers.userOf(r.Header)
	if u.name == "" {
		return user{}, fmt.Errorf("the request has no header %s", headers.user[0])
	}
	return u, nil
}
