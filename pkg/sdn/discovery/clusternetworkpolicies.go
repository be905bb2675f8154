package discovery

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	policyclient "sigs.k8s.io/network-policy-api/pkg/client/clientset/versioned"

	"github.com/ovsdn/ovsdn/pkg/sdn/pause"
)

const (
	// pollInterval is the interval between requests while the CRD is missing.
	pollInterval = time.Minute

	// firstPolicyRetry is the backoff after a failed request, which does not show whether the CRD exists. It doubles each time, up to pollInterval.
	firstPolicyRetry = time.Second
)

// HasClusterNetworkPolicies reports whether the API server serves ClusterNetworkPolicies in the supported version. It lists, because the
// answer to a list is "not found" only if the resource does not exist.
func HasClusterNetworkPolicies(ctx context.Context, client policyclient.Interface) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	_, err := client.PolicyV1alpha2().ClusterNetworkPolicies().List(ctx, metav1.ListOptions{Limit: 1})
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("list ClusterNetworkPolicies: %w", err)
	}
	return true, nil
}

// AwaitClusterNetworkPolicies returns when the API server serves ClusterNetworkPolicies: at once, or within pollInterval after the CRD was
// created. It fails only when the context ends.
func AwaitClusterNetworkPolicies(ctx context.Context, client policyclient.Interface) error {
	return awaitServed(ctx, "clusternetworkpolicies", func(ctx context.Context) (bool, error) { return HasClusterNetworkPolicies(ctx, client) })
}

// awaitServed returns when the API server serves the resource, whose plural name it logs.
func awaitServed(ctx context.Context, resource string, isServed func(context.Context) (bool, error)) error {
	retry := firstPolicyRetry
	for {
		has, err := isServed(ctx)
		next := pollInterval
		switch {
		case has:
			return nil
		case err == nil:
			retry = firstPolicyRetry
		case ctx.Err() == nil:
			next, retry = retry, min(2*retry, pollInterval)
			klog.FromContext(ctx).Error(err, "Failed to discover API", "resource", resource, "retryAfter", next, "action", "if access is denied, apply deploy/rbac of this version")
		}
		if !pause.For(ctx, next) {
			return context.Cause(ctx)
		}
	}
}
