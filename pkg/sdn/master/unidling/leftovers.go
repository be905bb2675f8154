package unidling

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// leftoversPerSecond limits the services that are read at the start of a term, while others are woken.
const leftoversPerSecond = 10

// leftovers are the services with the annotation at the start of a term that are not examined yet: a user may have scaled them, or an earlier leader that ended before
// their pods were ready. While they have endpoints, no packet causes an Event; whenever they have none, one would scale them to an old number.
type leftovers struct {
	listed   bool
	services []cache.ObjectName
}

// removeLeftovers removes the annotations of services that have endpoints. After an error, it examines the services that failed again.
func (c *Controller) removeLeftovers(ctx context.Context) error {
	if !c.left.listed {
		services, err := c.listLeftovers(ctx)
		if err != nil {
			return err
		}
		c.left = leftovers{true, services}
	}
	limiter := rate.NewLimiter(leftoversPerSecond, 1)
	var failed []cache.ObjectName
	var last error
	for _, service := range c.left.services {
		if err := limiter.Wait(ctx); err != nil {
			return fmt.Errorf("wait for the rate limit: %w", err)
		}
		if err := c.removeLeftover(ctx, service); err != nil {
			failed, last = append(failed, service), err
		}
	}
	c.left.services = failed
	if last != nil {
		return fmt.Errorf("remove the annotations of %d idled services with endpoints, the last one %s: %w", len(failed), failed[len(failed)-1], last)
	}
	return nil
}

// listLeftovers lists the services that were idled long ago. Pods of others may not have ended yet.
func (c *Controller) listLeftovers(ctx context.Context) (services []cache.ObjectName, err error) {
	client, options := c.Metadata.Resource(corev1.SchemeGroupVersion.WithResource("services")), metav1.ListOptions{Limit: pageSize}
	for {
		page, err := client.List(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("list Services: %w", err)
		}
		for _, s := range page.Items {
			if at, ok := config.IdledAt(s.Annotations); ok && time.Since(at) >= maxWait {
				services = append(services, cache.NewObjectName(s.Namespace, s.Name))
			}
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return services, nil
		}
	}
}

// removeLeftover removes the annotations of a service that has endpoints, and was not idled again in the meantime.
func (c *Controller) removeLeftover(ctx context.Context, service cache.ObjectName) error {
	ready, err := c.hasEndpoints(ctx, service)
	if err != nil || !ready {
		return err
	}
	objects, err := c.idledObjects(ctx, service, request{at: time.Now()})
	if err != nil || len(objects) == 0 || time.Since(latest(objects)) < maxWait {
		return err
	}
	if err := removeAnnotations(ctx, objects); err != nil {
		return err
	}
	klog.FromContext(ctx).Info("Removed the annotations of an idled service that has endpoints", "service", service)
	return nil
}
