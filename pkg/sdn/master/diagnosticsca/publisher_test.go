package diagnosticsca

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/ovsdn/ovsdn/pkg/sdn/certificates"
	"github.com/ovsdn/ovsdn/test/apitest"
	"github.com/ovsdn/ovsdn/test/await"
)

func TestMain(m *testing.M) { await.VerifyTestMain(m) }

const patience = 2 * time.Minute

// fixture is a leader with the rights of deploy/rbac, and an administrator.
type fixture struct {
	admin       kubernetes.Interface
	credentials *Credentials
	publisher   *Publisher
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	config := apitest.Start(t)
	apitest.ApplyRights(t, config)
	admin, ours := apitest.Clients(t, config)
	own := apitest.AsServiceAccount(config, certificates.Namespace, "ovsdn-controller")
	kube, oursOwn := apitest.Clients(t, own)
	objects, err := metadata.NewForConfig(own)
	must(t, err)
	f := &fixture{admin: admin}
	f.credentials, err = NewCredentials(kube)
	must(t, err)
	f.publisher, err = NewPublisher(kube, objects)
	must(t, err)
	must(t, f.createAPIService(t.Context()))
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { f.credentials.Run(ctx) })
	running.Go(func() { f.publisher.Run(ctx) })
	t.Cleanup(func() {
		stop()
		running.Wait()
		apitest.Disconnect(admin, ours)
		apitest.Disconnect(kube, oursOwn)
	})
	return f
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (f *fixture) rest() rest.Interface { return f.admin.CoreV1().RESTClient() }

func (f *fixture) createAPIService(ctx context.Context) error {
	return f.rest().Post().AbsPath(apiServices).Body([]byte(`{"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
		"metadata": {"name": "` + certificates.APIService + `"}, "spec": {"group": "diagnostics.ovsdn.io", "version": "v1alpha1",
		"groupPriorityMinimum": 100, "versionPriority": 10, "service": {"namespace": "ovsdn-system", "name": "ovsdn-controller-api"}}}`)).Do(ctx).Error()
}

// published returns the authority of the Secret, if the ConfigMap, the APIService and this controller have it.
func (f *fixture) published(ctx context.Context) (*certificates.Authority, error) {
	secret, err := f.admin.CoreV1().Secrets(certificates.Namespace).Get(ctx, certificates.ObjectName, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	authority, err := certificates.ParseAuthority(secret.Data["tls.crt"], secret.Data["tls.key"], time.Now())
	if err != nil {
		return nil, err
	}
	configMap, err := f.admin.CoreV1().ConfigMaps(certificates.Namespace).Get(ctx, certificates.ObjectName, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	raw, err := f.rest().Get().AbsPath(apiServices, certificates.APIService).Do(ctx).Raw()
	if err != nil {
		return nil, err
	}
	var service struct{ Spec apiServiceSpec }
	if err := json.Unmarshal(raw, &service); err != nil {
		return nil, err
	}
	own := f.credentials.Authority()
	switch bundle := authority.Bundle(); {
	case configMap.Data["ca.crt"] != string(bundle):
		return nil, errors.New("the ConfigMap has another authority")
	case !bytes.Equal(service.Spec.CABundle, bundle) || service.Spec.InsecureSkipTLSVerify:
		return nil, errors.New("the APIService has another authority")
	case own == nil || !bytes.Equal(own.Bundle(), bundle):
		return nil, errors.New("the controller has another authority")
	}
	return authority, nil
}

// awaitPublished returns the authority when it is accepted by the check and published.
func (f *fixture) awaitPublished(t *testing.T, check func(*certificates.Authority) error) (authority *certificates.Authority) {
	t.Helper()
	await.OK(t, patience, func(ctx context.Context) error {
		var err error
		if authority, err = f.published(ctx); err != nil {
			return err
		}
		return check(authority)
	})
	return authority
}

// The leader creates the authority, publishes it, and repairs what others change.
func TestPublisher(t *testing.T) {
	f := newFixture(t)
	if f.credentials.ServingCertificate() != nil {
		t.Error("got a serving certificate before there is an authority")
	}
	if _, err := f.credentials.ClientTLS("node1").GetClientCertificate(nil); !errors.Is(err, errNoAuthority) {
		t.Errorf("got error %v, want %v", err, errNoAuthority)
	}
	first := f.awaitPublished(t, func(*certificates.Authority) error { return nil })
	if _, err := f.credentials.ServingCertificate().Leaf.Verify(x509.VerifyOptions{Roots: first.Pool(), DNSName: certificates.ServiceName}); err != nil {
		t.Errorf("serving certificate: %v", err)
	}

	same := func(a *certificates.Authority) error {
		if !bytes.Equal(a.Bundle(), first.Bundle()) {
			return errors.New("got another authority")
		}
		return nil
	}
	configMaps, secrets := f.admin.CoreV1().ConfigMaps(certificates.Namespace), f.admin.CoreV1().Secrets(certificates.Namespace)
	for name, change := range map[string]func(context.Context) error{
		"ConfigMap deleted": func(ctx context.Context) error {
			return configMaps.Delete(ctx, certificates.ObjectName, metav1.DeleteOptions{})
		},
		"ConfigMap changed": func(ctx context.Context) error {
			_, err := configMaps.Patch(ctx, certificates.ObjectName, types.MergePatchType, []byte(`{"data":{"ca.crt":"x","other":"y"}}`), metav1.PatchOptions{})
			return err
		},
		"APIService changed": func(ctx context.Context) error {
			return f.rest().Patch(types.MergePatchType).AbsPath(apiServices, certificates.APIService).
				Body([]byte(`{"spec":{"caBundle":null,"insecureSkipTLSVerify":true}}`)).Do(ctx).Error()
		},
		"APIService created again": func(ctx context.Context) error {
			if err := f.rest().Delete().AbsPath(apiServices, certificates.APIService).Do(ctx).Error(); err != nil {
				return err
			}
			return f.createAPIService(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			must(t, change(t.Context()))
			if got := f.awaitPublished(t, func(*certificates.Authority) error { return nil }); same(got) != nil {
				t.Error("got another authority, want the same")
			}
		})
	}
	for name, change := range map[string]func(context.Context) error{
		"Secret deleted": func(ctx context.Context) error {
			return secrets.Delete(ctx, certificates.ObjectName, metav1.DeleteOptions{})
		},
		"certificate corrupted": func(ctx context.Context) error {
			return patchSecret(ctx, f, corev1.TLSCertKey, []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"))
		},
		"key replaced": func(ctx context.Context) error {
			other, err := certificates.NewAuthority(time.Now(), nil)
			if err != nil {
				return err
			}
			key, err := other.Key()
			if err != nil {
				return err
			}
			return patchSecret(ctx, f, corev1.TLSPrivateKeyKey, key)
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := f.awaitPublished(t, func(*certificates.Authority) error { return nil })
			must(t, change(t.Context()))
			after := f.awaitPublished(t, func(a *certificates.Authority) error {
				if bytes.Equal(a.Bundle(), before.Bundle()) {
					return errors.New("the authority is the previous one")
				}
				return nil
			})
			if bytes.Contains(after.Bundle(), before.Bundle()) {
				t.Error("the previous authority is trusted after it was revoked")
			}
		})
	}
	t.Run("renewal", func(t *testing.T) { testRenewal(t, f) })
	t.Run("late clock", func(t *testing.T) { testLateClock(t, f) })
}

func patchSecret(ctx context.Context, f *fixture, key string, value []byte) error {
	patch, err := json.Marshal(map[string]any{"data": map[string][]byte{key: value}})
	if err != nil {
		return err
	}
	_, err = f.admin.CoreV1().Secrets(certificates.Namespace).Patch(ctx, certificates.ObjectName, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// Before its end, the authority is renewed, and the previous one stays trusted. Agents and kube-apiserver trust the new one before it signs.
func testRenewal(t *testing.T, f *fixture) {
	first := f.awaitPublished(t, func(*certificates.Authority) error { return nil })
	written, err := f.admin.CoreV1().Secrets(certificates.Namespace).Watch(t.Context(), metav1.ListOptions{})
	must(t, err)
	defer written.Stop()
	// As if the first one had been created so long ago: that of a clock in the future would not be valid yet.
	old, err := certificates.NewAuthority(time.Now().Add(-8*365*24*time.Hour-time.Hour), nil)
	must(t, err)
	f.store(t, old)
	renewed := f.awaitPublished(t, func(a *certificates.Authority) error {
		if bytes.Equal(a.Bundle(), old.Bundle()) || bytes.Equal(a.Bundle(), first.Bundle()) {
			return errors.New("not renewed")
		}
		return nil
	})
	if !bytes.HasSuffix(renewed.Bundle(), old.Bundle()) || bytes.HasPrefix(renewed.Bundle(), old.Bundle()) {
		t.Error("got a bundle that does not end with the previous authority")
	}
	if err := certificates.VerifyClient([]*x509.Certificate{f.clientCertificate(t)}, old.Pool(), certificates.ControllerName); err == nil {
		t.Error("the previous authority signed the certificate of the controller")
	}
	configMap, err := f.admin.CoreV1().ConfigMaps(certificates.Namespace).Get(t.Context(), certificates.ObjectName, metav1.GetOptions{})
	must(t, err)
	for event := range written.ResultChan() {
		secret, ok := event.Object.(*corev1.Secret)
		if ok && bytes.Equal(secret.Data[certificates.CertKey], renewed.Bundle()) {
			if !isOlder(t, configMap.ResourceVersion, secret.ResourceVersion) {
				t.Errorf("the Secret was written at %s, before the ConfigMap at %s", secret.ResourceVersion, configMap.ResourceVersion)
			}
			break
		}
	}
}

// isOlder compares resource versions, which are revisions of etcd.
func isOlder(t *testing.T, a, b string) bool {
	t.Helper()
	older, err := strconv.ParseUint(a, 10, 64)
	must(t, err)
	newer, err := strconv.ParseUint(b, 10, 64)
	must(t, err)
	return older < newer
}

// An authority that a late clock makes invalid is not replaced: another controller may use it.
func testLateClock(t *testing.T, f *fixture) {
	future, err := certificates.NewAuthority(time.Now().Add(2*time.Hour), nil)
	must(t, err)
	version := f.store(t, future)
	if err := f.publisher.renew(t.Context()); !errors.Is(err, certificates.ErrNotYetValid) {
		t.Errorf("got error %v, want %v", err, certificates.ErrNotYetValid)
	}
	secret, err := f.admin.CoreV1().Secrets(certificates.Namespace).Get(t.Context(), certificates.ObjectName, metav1.GetOptions{})
	must(t, err)
	if secret.ResourceVersion != version {
		t.Error("the publisher replaced an authority that is valid two hours from now")
	}
}

// store writes the authority to the Secret and returns its version.
func (f *fixture) store(t *testing.T, a *certificates.Authority) (version string) {
	t.Helper()
	key, err := a.Key()
	must(t, err)
	secrets := f.admin.CoreV1().Secrets(certificates.Namespace)
	secret, err := secrets.Get(t.Context(), certificates.ObjectName, metav1.GetOptions{})
	must(t, err)
	secret.Data = map[string][]byte{certificates.CertKey: a.Bundle(), certificates.KeyKey: key}
	secret, err = secrets.Update(t.Context(), secret, metav1.UpdateOptions{})
	must(t, err)
	return secret.ResourceVersion
}

func (f *fixture) clientCertificate(t *testing.T) *x509.Certificate {
	t.Helper()
	pair, err := f.credentials.ClientTLS("node1").GetClientCertificate(nil)
	must(t, err)
	return pair.Leaf
}

// Certificates of the controller are renewed at half of their lifetime.
func TestCredentials_renews(t *testing.T) {
	authority, err := certificates.NewAuthority(time.Now(), nil)
	must(t, err)
	c := &Credentials{authority: authority}
	now := time.Now()
	_, client, serving, err := c.current(now)
	must(t, err)
	if _, again, _, err := c.current(now.Add(renewalInterval - time.Minute)); err != nil || again != client {
		t.Errorf("before half of the lifetime: got another certificate, error %v", err)
	}
	if _, again, other, err := c.current(now.Add(renewalInterval)); err != nil || again == client || other == serving {
		t.Errorf("after half of the lifetime: got the same certificate, error %v", err)
	}
}
