package master

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
	networkclient "github.com/openshift/client-go/network/clientset/versioned"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// Reasons of Events on the ClusterNetwork.
const (
	reasonInvalidNetwork  = "InvalidClusterNetwork"
	reasonDiffersFromFlag = "DiffersFromFlags"
	reasonUnsupportedMode = "UnsupportedMode"
)

// callTimeout bounds one look at the API server, which may not be reachable.
const callTimeout = 15 * time.Second

// networkKeeper sees to it that ClusterNetwork `default` exists.
type networkKeeper struct {
	client networkclient.Interface
	events record.EventRecorder
	wish   *config.Network
}

// await returns the cluster's network as soon as there is a valid one: an API server that is not there yet, missing
// CRDs and a broken object are waited out, because a restart would mend none of them. It fails only when the context ends.
func (k *networkKeeper) await(ctx context.Context) (*config.Network, error) {
	var network *config.Network
	retry := wait.Backoff{Duration: 250 * time.Millisecond, Factor: 2, Jitter: 0.1, Cap: 15 * time.Second, Steps: math.MaxInt}
	err := retry.DelayFunc().Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		attempt, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		var err error
		if network, err = k.ensure(attempt); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "No network configuration yet, trying again")
		}
		return err == nil, nil
	})
	return network, err
}

// ensure reads the stored network, after it has stored the wish if there was none.
func (k *networkKeeper) ensure(ctx context.Context) (*config.Network, error) {
	if err := k.haveKinds(ctx); err != nil {
		return nil, err
	}
	client := k.client.NetworkV1().ClusterNetworks()
	stored, err := client.Get(ctx, networkv1.ClusterNetworkDefault, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		if stored, err = client.Create(ctx, k.wish.Object(), metav1.CreateOptions{}); err == nil {
			klog.FromContext(ctx).Info("Created ClusterNetwork default", "network", k.wish)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("get or create ClusterNetwork %s: %w", networkv1.ClusterNetworkDefault, err)
	}
	network, err := config.ParseNetwork(stored)
	if err != nil {
		return nil, k.warn(stored, reasonInvalidNetwork, fmt.Errorf("ClusterNetwork %s can't be used until this is corrected: %w", stored.Name, err))
	}
	if differences := k.differences(network); len(differences) > 0 {
		err := k.warn(stored, reasonDiffersFromFlag, fmt.Errorf("the controller's flags say otherwise and are not followed: %w", errors.Join(differences...)))
		klog.FromContext(ctx).Info("Following the stored ClusterNetwork", "err", err)
	}
	if !supported(network.Mode) {
		err := k.warn(stored, reasonUnsupportedMode, fmt.Errorf("mode %s is not in this version yet: nodes get their subnets, but pods are not isolated", network.Mode))
		klog.FromContext(ctx).Info("Going on without isolation", "err", err)
	}
	return network, nil
}

// haveKinds says which of our kinds the API server lacks. Listing is how to tell: that finds nothing only if there is
// no such kind.
func (k *networkKeeper) haveKinds(ctx context.Context) error {
	one := metav1.ListOptions{Limit: 1}
	for _, kind := range []struct {
		name string
		list func() error
	}{
		{"ClusterNetwork", func() error { _, err := k.client.NetworkV1().ClusterNetworks().List(ctx, one); return err }},
		{"HostSubnet", func() error { _, err := k.client.NetworkV1().HostSubnets().List(ctx, one); return err }},
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

// differences lists in what the stored network is not what the flags say.
func (k *networkKeeper) differences(stored *config.Network) []error {
	var list []error
	for _, d := range []struct {
		what         string
		stored, wish any
	}{
		{"mode", stored.Mode, k.wish.Mode},
		{"cluster network", stored.ClusterNetworks, k.wish.ClusterNetworks},
		{"service network", stored.ServiceNetwork, k.wish.ServiceNetwork},
		{"VXLAN port", stored.VXLANPort, k.wish.VXLANPort},
		{"MTU", stored.MTU, k.wish.MTU},
	} {
		if !reflect.DeepEqual(d.stored, d.wish) {
			list = append(list, fmt.Errorf("%s is %v, not %v", d.what, d.stored, d.wish))
		}
	}
	return list
}

// warn puts an error where people look for it, and returns it.
func (k *networkKeeper) warn(about *networkv1.ClusterNetwork, reason string, err error) error {
	k.events.Event(about, corev1.EventTypeWarning, reason, strings.ReplaceAll(err.Error(), "\n", "; "))
	return err
}
