package unidling

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	unidlingv1alpha1 "github.com/openshift/api/unidling/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// idled is an object with the annotations of an idled service: the Service, or its Endpoints.
type idled struct {
	client  metadata.ResourceInterface
	object  *metav1.PartialObjectMetadata // nil: it does not exist
	service *metav1.PartialObjectMetadata
	at      time.Time // at which the service was idled
}

// wake scales the objects of the service, if it was idled before the packet. If all of them have replicas then, it returns when the service was idled, else the zero
// time. An error is one that a retry may remove.
func (c *Controller) wake(ctx context.Context, name cache.ObjectName, r request) (idledAt time.Time, err error) {
	objects, err := c.idledObjects(ctx, name, r)
	if err != nil || len(objects) == 0 {
		return time.Time{}, err
	}
	if failed, _ := c.failures.Get(name.String()); failed == version(objects) {
		return time.Time{}, nil
	}
	service := objects[len(objects)-1].service
	about := &corev1.ObjectReference{
		APIVersion: "v1", Kind: "Service", Namespace: name.Namespace, Name: name.Name, UID: service.UID, ResourceVersion: service.ResourceVersion,
	}
	value := ""
	for _, o := range objects {
		value = cmp.Or(o.object.Annotations[unidlingv1alpha1.UnidleTargetAnnotation], value) // the Service's precedes
	}
	targets, err := config.ParseUnidleTargets(value)
	if err != nil {
		c.Events.Event(about, corev1.EventTypeWarning, eventreason.UnidleFailed,
			reconcile.Shorten(fmt.Sprintf("annotation %s: %s", unidlingv1alpha1.UnidleTargetAnnotation, reconcile.OneLine(err))))
		c.failures.Add(name.String(), version(objects), failureLifetime)
		return time.Time{}, nil //nolint:nilerr // the Event has reported it, and a retry does not help
	}
	if !c.payTargets(ctx, name, r, len(targets)) {
		return time.Time{}, errOverBudget
	}
	done := c.scaleAll(ctx, name.Namespace, targets)
	c.report(ctx, name, about, done)
	if len(done.remaining) == 0 {
		return latest(objects), nil
	}
	if err := errors.Join(writeRemaining(ctx, objects, done), done.retry); err != nil {
		return time.Time{}, err
	}
	c.failures.Add(name.String(), version(objects), failureLifetime)
	return time.Time{}, nil
}

// version changes when a user changes the objects of an idled service.
func version(objects []idled) string {
	versions := make([]string, 0, len(objects))
	for _, o := range objects {
		versions = append(versions, o.object.ResourceVersion)
	}
	return strings.Join(versions, "/")
}

// awaitEndpoints removes the annotations of a woken service as soon as it has endpoints, or after maxWait.
func (c *Controller) awaitEndpoints(ctx context.Context, name cache.ObjectName, r request) error {
	objects, err := c.idledObjects(ctx, name, r)
	if err != nil {
		return err
	}
	if len(objects) > 0 && !latest(objects).Equal(r.idledAt) { // it was idled again, and a packet arrived
		c.requests.update(name, func(r *request) { r.woken, r.due = time.Time{}, time.Now() })
		return nil
	}
	if len(objects) > 0 && time.Since(r.woken) < maxWait {
		ready, err := c.hasEndpoints(ctx, name)
		if err != nil {
			return err
		}
		if !ready {
			c.requests.update(name, func(current *request) {
				if current.failures = 0; current.at.Equal(r.at) { // a later packet is due at once
					current.due = time.Now().Add(pollInterval)
				}
			})
			return nil
		}
	}
	if err := removeAnnotations(ctx, objects); err != nil {
		return err
	}
	c.requests.finish(name, r)
	return nil
}

func (c *Controller) hasEndpoints(ctx context.Context, name cache.ObjectName) (bool, error) {
	selector := labels.Set{discoveryv1.LabelServiceName: name.Name}.String()
	slices, err := c.Kube.DiscoveryV1().EndpointSlices(name.Namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return false, fmt.Errorf("list EndpointSlices: %w", err)
	}
	for _, s := range slices.Items {
		for _, e := range s.Endpoints {
			if ready := e.Conditions.Ready; ready == nil || *ready {
				return true, nil
			}
		}
	}
	return false, nil
}

// latest returns when the service was idled.
func latest(objects []idled) (at time.Time) {
	for _, o := range objects {
		if o.at.After(at) {
			at = o.at
		}
	}
	return at
}

// idledObjects returns the objects with the annotations of an idled service, none if it was idled after the packet. The Service is the last one: until it is written,
// the next packet completes what a restart has interrupted.
func (c *Controller) idledObjects(ctx context.Context, name cache.ObjectName, r request) ([]idled, error) {
	service, err := c.get(ctx, "services", name)
	if err != nil || service.object == nil {
		return nil, err
	}
	endpoints, err := c.get(ctx, "endpoints", name)
	if err != nil {
		return nil, err
	}
	var objects []idled
	for _, o := range []idled{endpoints, service} {
		if o.object == nil {
			continue
		}
		at, ok := config.IdledAt(o.object.Annotations)
		if ok && r.at.Before(at.Truncate(time.Second)) { // as times of Events
			klog.FromContext(ctx).V(2).Info("Ignored a packet from before the service was idled", "packetTime", r.at, "idledAt", at, "action", syncClocks)
			return nil, nil
		}
		if ok {
			o.at, o.service = at, service.object
			objects = append(objects, o)
		}
	}
	return objects, nil
}

func (c *Controller) get(ctx context.Context, resource string, name cache.ObjectName) (o idled, err error) {
	o.client = c.Metadata.Resource(corev1.SchemeGroupVersion.WithResource(resource)).Namespace(name.Namespace)
	if o.object, err = reconcile.OrNil(o.client.Get(ctx, name.Name, metav1.GetOptions{})); err != nil {
		return o, fmt.Errorf("get %s: %w", resource, err)
	}
	return o, nil
}

// result is what became of the targets of a service.
type result struct {
	scaled    []string // such as "Deployment web to 2"
	missing   []string
	remaining []config.UnidleTarget // that failed
	failures  []error               // of the remaining, in their order
	retry     error                 // the failures that may be temporary
}

func (c *Controller) scaleAll(ctx context.Context, namespace string, targets []config.UnidleTarget) result {
	var done result
	var temporary []error
	for _, t := range targets {
		scaled, err := c.scale(ctx, namespace, t)
		switch {
		case apierrors.IsNotFound(err):
			done.missing = append(done.missing, t.String())
		case err != nil:
			err = fmt.Errorf("scale %s to %d: %w", t, t.Replicas, err)
			done.remaining, done.failures = append(done.remaining, t), append(done.failures, err)
			if !isPermanent(err) {
				temporary = append(temporary, err)
			}
		case scaled:
			done.scaled = append(done.scaled, fmt.Sprintf("%s to %d", t, t.Replicas))
		}
	}
	done.retry = errors.Join(temporary...)
	return done
}

// isPermanent reports whether the error remains until a user changes an object or a right.
func isPermanent(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsMethodNotSupported(err) || meta.IsNoMatchError(err)
}

// scale scales a target that has no replicas, and reports whether it had none.
func (c *Controller) scale(ctx context.Context, namespace string, t config.UnidleTarget) (bool, error) {
	mapping, err := c.Mapper.RESTMapping(schema.GroupKind{Group: t.Group, Kind: t.Kind})
	if err != nil {
		return false, err
	}
	client, resource := c.Scales.Scales(namespace), mapping.Resource.GroupResource()
	current, err := client.Get(ctx, resource, t.Name, metav1.GetOptions{})
	if err != nil || current.Spec.Replicas > 0 {
		return false, err
	}
	current.Spec.Replicas = t.Replicas
	_, err = client.Update(ctx, resource, current, metav1.UpdateOptions{})
	return err == nil, err
}

// writeRemaining reduces the lists of a service to the targets that failed.
func writeRemaining(ctx context.Context, objects []idled, done result) error {
	if len(done.scaled)+len(done.missing) == 0 {
		return nil
	}
	value, err := config.FormatUnidleTargets(done.remaining)
	if err != nil {
		return err
	}
	return write(ctx, objects, map[string]any{unidlingv1alpha1.UnidleTargetAnnotation: value})
}

// removeAnnotations ends that a service is idled.
func removeAnnotations(ctx context.Context, objects []idled) error {
	return write(ctx, objects, map[string]any{unidlingv1alpha1.IdledAtAnnotation: nil, unidlingv1alpha1.UnidleTargetAnnotation: nil})
}

// write patches annotations, and sets the version of the objects. Their version makes the API server refuse the patch if the service was idled again.
func write(ctx context.Context, objects []idled, annotations map[string]any) error {
	for _, o := range objects {
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": o.object.ResourceVersion, "annotations": annotations}})
		if err != nil {
			return fmt.Errorf("encode patch: %w", err)
		}
		written, err := reconcile.OrNil(o.client.Patch(ctx, o.object.Name, types.MergePatchType, patch, metav1.PatchOptions{}))
		if err != nil {
			return fmt.Errorf("write annotations of an idled service: %w", err)
		}
		if written != nil {
			o.object.ResourceVersion = written.ResourceVersion
		}
	}
	return nil
}

// report sends Events about the result.
func (c *Controller) report(ctx context.Context, name cache.ObjectName, about *corev1.ObjectReference, done result) {
	var parts []string
	if len(done.scaled) > 0 {
		parts = append(parts, "scaled "+strings.Join(done.scaled, ", "))
	}
	if len(done.missing) > 0 {
		parts = append(parts, "no longer exists: "+strings.Join(done.missing, ", "))
	}
	if len(parts) > 0 {
		klog.FromContext(ctx).Info("Woke an idled service", "scaled", done.scaled, "missing", done.missing)
		c.Events.Event(about, corev1.EventTypeNormal, eventreason.Unidled, reconcile.Shorten("a packet arrived for the idled service: "+strings.Join(parts, "; ")))
	}
	if len(done.failures) == 0 {
		return
	}
	message := reconcile.ShortenBefore(reconcile.OneLine(errors.Join(done.failures...)), remedy(done.failures))
	if c.setReported(name, message) {
		c.Events.Event(about, corev1.EventTypeWarning, eventreason.UnidleFailed, message)
	}
}

// remedy returns what to do about failures, as the end of a message.
func remedy(failures []error) string {
	const byHand = "scale the objects by hand and remove the annotations of the Service"
	switch {
	case slices.ContainsFunc(failures, apierrors.IsForbidden):
		return "; add the kind's scale to ClusterRole ovsdn-unidling, or " + byHand
	case slices.ContainsFunc(failures, meta.IsNoMatchError):
		return "; correct the kind and the group in the annotation, or " + byHand
	}
	return "; the annotations of the Service remain until these objects are scaled"
}
