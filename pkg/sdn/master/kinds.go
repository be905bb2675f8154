package master

import (
	"context"
	"fmt"
	"math"

	networkv1 "github.com/openshift/api/network/v1"
	networkclient "github.com/openshift/client-go/network/clientset/versioned"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
)

// awaitKinds returns when the API server has our kinds: one that is not there yet and missing CRDs are waited out, because
// a restart would mend neither. It fails only when the context ends.
func awaitKinds(ctx context.Context, client networkclient.Interface) error {
	retry := wait.Backoff{Duration: firstRetry, Factor: 2, Jitter: 0.1, Cap: lastRetry, Steps: math.MaxInt}
	return retry.DelayFunc().Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		attempt, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		err := haveKinds(attempt, client)
		if err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "No network configuration yet, trying again")
		}
		return err == nil, nil
	})
}

// haveKinds says which of our kinds the API server lacks. Listing is how to tell: that finds nothing only if there is
// no such kind.
func haveKinds(ctx context.Context, client networkclient.Interface) error {
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
			return fmt.Errorf("ask the API server for the kind %s: %w", kind.name, err)
		}
	}
	return nil
}
