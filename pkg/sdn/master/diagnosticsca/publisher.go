package diagnosticsca

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/certificates"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

const (
	// checkInterval bounds the time until the authority is found to be near its end.
	checkInterval = 12 * time.Hour

	loopKey = certificates.ObjectName // of the only object

	apiServices = "/apis/apiregistration.k8s.io/v1/apiservices"
)

// Publisher creates, renews and replaces the authority in its Secret, and publishes its certificates in the ConfigMap and in the APIService. The leader
// runs it.
type Publisher struct {
	kube                          kubernetes.Interface
	rest                          rest.Interface
	secret, configMap, apiService cache.SharedIndexInformer
	loop                          *reconcile.Loop
	now                           func() time.Time
}

// NewPublisher returns a publisher of one term.
func NewPublisher(kube kubernetes.Interface, objects metadata.Interface) (*Publisher, error) {
	p := &Publisher{
		kube: kube, rest: kube.CoreV1().RESTClient(), now: time.Now,
		secret:    newSecretInformer(kube),
		configMap: coreinformers.NewFilteredConfigMapInformer(kube, certificates.Namespace, 0, cache.Indexers{}, reconcile.OnlyNamed(certificates.ObjectName)),
		apiService: metadatainformer.NewFilteredMetadataInformer(objects,
			schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"},
			metav1.NamespaceAll, 0, cache.Indexers{}, reconcile.OnlyNamed(certificates.APIService)).Informer(),
	}
	p.loop = reconcile.New("diagnostics-ca", p.reconcile)
	var errs []error
	for _, informer := range p.informers() {
		add := func(any) { p.loop.Add(loopKey) }
		_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: add, UpdateFunc: func(_, o any) { add(o) }, DeleteFunc: add})
		errs = append(errs, err)
	}
	return p, errors.Join(errs...)
}

func (p *Publisher) informers() []cache.SharedIndexInformer {
	return []cache.SharedIndexInformer{p.secret, p.configMap, p.apiService}
}

// Run publishes until the context ends.
func (p *Publisher) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	for _, informer := range p.informers() {
		running.Go(func() { informer.RunWithContext(ctx) })
	}
	// Not that of the APIService, which an installation may not have.
	if !cache.WaitForCacheSync(ctx.Done(), p.secret.HasSynced, p.configMap.HasSynced) {
		return
	}
	p.loop.Add(loopKey)
	p.loop.Run(ctx, 1)
}

func (p *Publisher) reconcile(ctx context.Context, _ string) error {
	cached := reconcile.Cached[corev1.Secret](p.secret, certificates.Namespace+"/"+certificates.ObjectName)
	authority, err := p.current(cached)
	if err != nil || authority == nil || !p.now().Before(authority.RenewAt()) {
		return p.renew(ctx)
	}
	p.loop.AddAfter(loopKey, min(max(authority.RenewAt().Sub(p.now()), time.Minute), checkInterval))
	return p.publish(ctx, authority.Bundle())
}

// renew replaces the authority unless the Secret has one that is valid: the cache may be stale. A deleted Secret is a revocation: the new authority
// does not trust the previous one. So is an invalid one, but not one that only a wrong clock makes invalid.
func (p *Publisher) renew(ctx context.Context) error {
	stored, err := p.kube.CoreV1().Secrets(certificates.Namespace).Get(ctx, certificates.ObjectName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		stored = nil
	case err != nil:
		return fmt.Errorf("get Secret %s/%s: %w", certificates.Namespace, certificates.ObjectName, err)
	}
	previous, err := p.current(stored)
	switch {
	case errors.Is(err, certificates.ErrNotYetValid):
		return fmt.Errorf("parse Secret %s: %w; correct the clock of this controller, or delete the Secret if its creator's was wrong", klog.KObj(stored), err)
	case err != nil:
		klog.FromContext(ctx).Error(err, "Replacing the diagnostics authority, which is invalid", "secret", klog.KObj(stored))
	case previous != nil && p.now().Before(previous.RenewAt()):
		return p.publish(ctx, previous.Bundle())
	}
	authority, err := certificates.NewAuthority(p.now(), previous)
	if err != nil {
		return err
	}
	if previous != nil {
		// Those that verify controllers and agents trust both before the new authority signs.
		if err := p.publish(ctx, authority.Bundle()); err != nil {
			return err
		}
	}
	if err := p.writeSecret(ctx, stored, authority); err != nil {
		return err
	}
	klog.FromContext(ctx).Info("Created the diagnostics authority", "isRenewal", previous != nil)
	return nil // the Secret's event publishes it
}

// current returns the authority of the Secret, nil without a Secret.
func (p *Publisher) current(secret *corev1.Secret) (*certificates.Authority, error) {
	if secret == nil {
		return nil, nil
	}
	return certificates.ParseAuthority(secret.Data[certificates.CertKey], secret.Data[certificates.KeyKey], p.now())
}

// writeSecret creates or updates the Secret.
func (p *Publisher) writeSecret(ctx context.Context, stored *corev1.Secret, authority *certificates.Authority) error {
	key, err := authority.Key()
	if err != nil {
		return err
	}
	data := map[string][]byte{certificates.CertKey: authority.Bundle(), certificates.KeyKey: key}
	write := p.kube.CoreV1().Secrets(certificates.Namespace)
	if stored == nil {
		_, err = write.Create(ctx, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: certificates.Namespace, Name: certificates.ObjectName}, Type: corev1.SecretTypeTLS, Data: data,
		}, metav1.CreateOptions{})
	} else {
		secret := stored.DeepCopy() // with its version: the write fails if the cache is late
		secret.Data = data
		_, err = write.Update(ctx, secret, metav1.UpdateOptions{})
	}
	remedy := ""
	if apierrors.IsInvalid(err) {
		remedy = "; if the Secret is immutable, delete it"
	}
	if err != nil {
		return fmt.Errorf("write Secret %s/%s: %w%s", certificates.Namespace, certificates.ObjectName, err, remedy)
	}
	return nil
}

// publish writes the certificates where agents and kube-apiserver read them.
func (p *Publisher) publish(ctx context.Context, bundle []byte) error {
	return errors.Join(p.writeConfigMap(ctx, bundle), p.setCABundle(ctx, bundle))
}

// writeConfigMap creates or updates the ConfigMap, which agents read.
func (p *Publisher) writeConfigMap(ctx context.Context, bundle []byte) error {
	existing := reconcile.Cached[corev1.ConfigMap](p.configMap, certificates.Namespace+"/"+certificates.ObjectName)
	want := map[string]string{certificates.BundleKey: string(bundle)}
	write := p.kube.CoreV1().ConfigMaps(certificates.Namespace)
	var err error
	switch {
	case existing == nil:
		_, err = write.Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: certificates.Namespace, Name: certificates.ObjectName}, Data: want,
		}, metav1.CreateOptions{})
	case !maps.Equal(existing.Data, want) || len(existing.BinaryData) > 0:
		o := existing.DeepCopy()
		o.Data, o.BinaryData = want, nil
		_, err = write.Update(ctx, o, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("write ConfigMap %s/%s: %w", certificates.Namespace, certificates.ObjectName, err)
	}
	return nil
}

// apiServiceSpec are the fields of an APIService by which kube-apiserver verifies controllers.
type apiServiceSpec struct {
	CABundle              []byte `json:"caBundle"`
	InsecureSkipTLSVerify bool   `json:"insecureSkipTLSVerify"`
}

// setCABundle writes the APIService if it exists.
func (p *Publisher) setCABundle(ctx context.Context, bundle []byte) error {
	if reconcile.Cached[metav1.PartialObjectMetadata](p.apiService, certificates.APIService) == nil {
		return nil
	}
	raw, err := p.rest.Get().AbsPath(apiServices, certificates.APIService).SetHeader("Accept", "application/json").Do(ctx).Raw()
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get APIService %s: %w", certificates.APIService, err)
	}
	var existing struct{ Spec apiServiceSpec }
	if err := json.Unmarshal(raw, &existing); err != nil {
		return fmt.Errorf("decode APIService %s: %w", certificates.APIService, err)
	}
	if bytes.Equal(existing.Spec.CABundle, bundle) && !existing.Spec.InsecureSkipTLSVerify {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"spec": apiServiceSpec{CABundle: bundle}})
	if err != nil {
		return err
	}
	if err := p.rest.Patch(types.MergePatchType).AbsPath(apiServices, certificates.APIService).Body(patch).Do(ctx).Error(); err != nil {
		return fmt.Errorf("patch APIService %s: %w", certificates.APIService, err)
	}
	klog.FromContext(ctx).Info("Set the authority of the APIService", "apiService", certificates.APIService)
	return nil
}
