// Package discovery finds out whether the API server serves the APIs that ovsdn depends on.
package discovery

import (
	"context"
	"fmt"
	"math"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
	networkclient "github.com/openshift/client-go/network/clientset/versioned"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
)

const (
	requestTimeout = 15 * time.Second // of one attempt

	// Backoff of AwaitNetworkAPI, doubled each time.
	firstNetworkRetry = 250 * time.Millisecond
	lastNetworkRetry  = 15 * time.Second
)

// AwaitNetworkAPI returns when the API server serves ClusterNetworks, HostSubnets and NetNamespaces. It retries while the API server is
// unreachable or CRDs are missing, since a restart would fix neither. It fails only when the context ends.
func AwaitNetworkAPI(ctx context.Context, client networkclient.Interface) error {
	retry := wait.Backoff{Duration: firstNetworkRetry, Factor: 2, Jitter: 0.1, Cap: lastNetworkRetry, Steps: math.MaxInt}
	return retry.DelayFunc().Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		attempt, cancel := context.WithTimeout(ctx, requestTimeout)
		defer cancel()
		err := checkNetworkAPI(attempt, client)
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Failed to discover network API")
		}
		return err == nil, nil
	})
}

// checkNetworkAPI returns an error that names the first resource that the API server does not serve. It lists, because the answer to a list
// is "not found" only if the resource does not exist.
func checkNetworkAPI(ctx context.Context, client networkclient.Interface) error {
	one := metav1.ListOptions{Limit: 1}
	for _, kind := range []struct {
		name string
		list func() error
	}{
		{"ClusterNetwork", func() error { _, err := client.NetworkV1().ClusterNetworks().List(ctx, one); return err }},
		{"HostSubnet", func() error { _, err := client.NetworkV1().HostSubnets().List(ctx, one); return err }},
		{"NetNamespace", func() error { _, err := client.NetworkV1().NetNamespaces().List(ctx, one); return err }},
	} {
		switch err := kind.list(); {
		case apierrors.IsNotFound(err):
			return fmt.Errorf("the cluster has no kind %s of %s: apply the manifests in deploy/crds (kubectl apply -f deploy/crds)",
				kind.name, networkv1.GroupVersion)
		case err != nil:
			return fmt.Errorf("list %ss: %w", kind.name, err)
		}
	}
	return nil
}
