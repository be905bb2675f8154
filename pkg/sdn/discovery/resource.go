package discovery

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
)

// AwaitResource returns when the API server serves the resource: at once, or within pollInterval after its CRD was created. It fails only when the
// context ends.
func AwaitResource(ctx context.Context, client metadata.Interface, resource schema.GroupVersionResource) error {
	return awaitServed(ctx, resource.Resource, func(ctx context.Context) (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		_, err := client.Resource(resource).List(ctx, metav1.ListOptions{Limit: 1})
		switch {
		case apierrors.IsNotFound(err):
			return false, nil
		case err != nil:
			return false, fmt.Errorf("list %s: %w", resource.Resource, err)
		}
		return true, nil
	})
}
