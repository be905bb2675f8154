// Package kinds says whether the cluster has a kind that it may do without.
package kinds

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	policyclient "sigs.k8s.io/network-policy-api/pkg/client/clientset/versioned"
)

const (
	askEvery   = time.Minute
	askTimeout = 15 * time.Second
	firstRetry = time.Second // after an error, which says nothing of the kind; from then on at half the pace each time
)

// HasClusterPolicies asks the API server whether it has ClusterNetworkPolicies, of the version that we know. Listing is how to tell:
// that finds nothing only if there is no such kind.
func HasClusterPolicies(ctx context.Context, client policyclient.Interface) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	_, err := client.PolicyV1alpha2().ClusterNetworkPolicies().List(ctx, metav1.ListOptions{Limit: 1})
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("ask the API server for the kind ClusterNetworkPolicy: %w", err)
	}
	return true, nil
}

// AwaitClusterPolicies returns when the cluster has ClusterNetworkPolicies: at once, or within a minute from when they come. It fails
// only when the context ends.
func AwaitClusterPolicies(ctx context.Context, client policyclient.Interface) error {
	retry := firstRetry
	for {
		has, err := HasClusterPolicies(ctx, client)
		pause := askEvery
		switch {
		case has:
			return nil
		case err == nil:
			retry = firstRetry
		case ctx.Err() == nil:
			pause, retry = retry, min(2*retry, askEvery)
			klog.FromContext(ctx).Error(err, "Will ask again", "in", pause)
		}
		ask := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			ask.Stop()
			return context.Cause(ctx)
		case <-ask.C:
		}
	}
}
