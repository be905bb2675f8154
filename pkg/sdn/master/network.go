package master

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
	networkclient "github.com/openshift/client-go/network/clientset/versioned"
	networkinformers "github.com/openshift/client-go/network/informers/externalversions/network/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// Reasons of Events on the ClusterNetwork.
const (
	reasonInvalidNetwork  = "InvalidClusterNetwork"  // it is wrong in itself
	reasonRefusedNetwork  = "RefusedClusterNetwork"  // it would take away or move what is in use
	reasonAcceptedNetwork = "AcceptedClusterNetwork" // an edit is followed
	reasonDiffersFromFlag = "DiffersFromFlags"
)

const (
	// callTimeout bounds one look at the API server, which may not be reachable.
	callTimeout = 15 * time.Second

	// What fails is tried again after a quarter of a second, and from then on at half the pace each time.
	firstRetry = 250 * time.Millisecond
	lastRetry  = 15 * time.Second

	// What something in use forbids is judged again at this pace: it may be gone.
	judgeAgain = 10 * time.Second
)

// networkKeeper sees to it that ClusterNetwork `default` exists, decides which of its edits the network follows, and says
// so on the object (config.AcceptedAnnotation and its neighbours).
//
// What it decides on, the object and what nodes hold of the network, can't be written to in one step, so a leader that was
// stopped while it decided must not write its verdict when another rules. Each leader therefore begins by writing its
// term's name on the object, before it gives anything out. From then on a verdict of the one before, which was made of an older
// version, conflicts; and once that one has read the new version, it finds another's name there and resigns.
type networkKeeper struct {
	client   networkclient.Interface
	events   record.EventRecorder
	wish     *config.Network                              // what to create if there is none
	name     string                                       // of this leader's term, unique
	follow   func(context.Context, *config.Network) error // puts a network into force, or says what in use forbids that
	informed cache.InformerSynced
	queue    workqueue.TypedRateLimitingInterface[string]

	inForce chan struct{} // closed when running is there, and the object says so
	begin   func()        // closes inForce, once

	// Below is run's.
	running *config.Network // in force; nil: none yet
	ruling  bool            // the name is on the object
	told    *config.Network // what was in force when the object's authors last heard of it; nil: nothing
}

// deposedError says that another controller rules.
type deposedError struct{ by string }

func (e *deposedError) Error() string {
	return fmt.Sprintf("%s has written itself into ClusterNetwork %s: either this controller slept through its lease, or both run without --leader-elect",
		e.by, networkv1.ClusterNetworkDefault)
}

func newNetworkKeeper(client networkclient.Interface, events record.EventRecorder, wish *config.Network, name string,
	informer networkinformers.ClusterNetworkInformer, follow func(context.Context, *config.Network) error) (*networkKeeper, error) {
	k := &networkKeeper{
		client: client, events: events, wish: wish, name: name, follow: follow,
		informed: informer.Informer().HasSynced,
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](firstRetry, lastRetry),
			workqueue.TypedRateLimitingQueueConfig[string]{Name: "clusternetworks"}),
		inForce: make(chan struct{}),
	}
	k.begin = sync.OnceFunc(func() { close(k.inForce) })
	changed := func(any) { k.queue.Add(networkv1.ClusterNetworkDefault) } // another name is ignored, but costs nothing
	_, err := informer.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: changed, DeleteFunc: changed,
		UpdateFunc: func(_, o any) { changed(o) },
	})
	if err != nil {
		return nil, fmt.Errorf("listen to an informer: %w", err)
	}
	return k, nil
}

// run works until the context ends. Its only error is a *deposedError.
func (k *networkKeeper) run(ctx context.Context) error {
	defer context.AfterFunc(ctx, k.queue.ShutDown)()
	defer k.queue.ShutDown()
	if !cache.WaitForNamedCacheSyncWithContext(ctx, k.informed) {
		return nil // only the end of the context ends the wait
	}
	k.queue.Add(networkv1.ClusterNetworkDefault) // also if there is none
	for {
		key, shutdown := k.queue.Get()
		if shutdown {
			return nil
		}
		attempt, cancel := context.WithTimeout(ctx, callTimeout)
		err := k.keep(attempt)
		cancel()
		k.queue.Done(key)
		deposed, is := errors.AsType[*deposedError](err)
		switch {
		case ctx.Err() != nil:
			return nil
		case is:
			return deposed
		case err == nil:
			k.queue.Forget(key)
		default:
			if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) { // those only mean that somebody else wrote
				klog.FromContext(ctx).Error(err, "ClusterNetwork could not be seen to, trying again")
			}
			k.queue.AddRateLimited(key)
		}
	}
}

// keep brings the network into force that the object wants, if that can be, and writes its verdict on the object.
func (k *networkKeeper) keep(ctx context.Context) error {
	stored, err := k.getOrCreate(ctx)
	if err != nil {
		return err
	}
	if by := stored.Annotations[config.ControllerAnnotation]; k.ruling && by != "" && by != k.name {
		return &deposedError{by}
	}
	if k.running == nil {
		// What was accepted stays in force, whatever the object says by now.
		if former, err := config.InForce(stored); err == nil {
			if err := k.enforce(ctx, stored, former); err != nil {
				return err
			}
			k.told = former
		}
	}
	verdict := k.judge(ctx, stored)
	if err := k.write(ctx, stored, verdict); err != nil {
		return err
	}
	k.ruling = true
	if verdict.Reason == config.ReasonInUse {
		k.queue.AddAfter(stored.Name, judgeAgain)
	}
	if k.running == nil {
		return nil
	}
	k.begin()
	if k.told != nil && !reflect.DeepEqual(k.told, k.running) {
		k.events.Event(stored, corev1.EventTypeNormal, reasonAcceptedNetwork, k.inForceNow())
	}
	k.told = k.running
	return nil
}

// getOrCreate reads the stored ClusterNetwork. If there is none it is made of what is in force or, in a new cluster, of
// the flags.
func (k *networkKeeper) getOrCreate(ctx context.Context) (*networkv1.ClusterNetwork, error) {
	client := k.client.NetworkV1().ClusterNetworks()
	stored, err := client.Get(ctx, networkv1.ClusterNetworkDefault, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		network := k.running
		if network == nil {
			network = k.wish
		}
		if stored, err = client.Create(ctx, network.Object(), metav1.CreateOptions{}); err == nil {
			klog.FromContext(ctx).Info("Created ClusterNetwork default", "network", describe(network))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("get or create ClusterNetwork %s: %w", networkv1.ClusterNetworkDefault, err)
	}
	return stored, nil
}

// judge puts what the object wants into force, or warns of what speaks against it.
func (k *networkKeeper) judge(ctx context.Context, stored *networkv1.ClusterNetwork) metav1.Condition {
	verdict := metav1.Condition{Type: config.ConditionAccepted, ObservedGeneration: stored.Generation}
	want, err := config.ParseNetwork(stored)
	event := reasonInvalidNetwork
	verdict.Status, verdict.Reason = metav1.ConditionFalse, config.ReasonInvalid
	if err == nil && (k.running == nil || !reflect.DeepEqual(want, k.running)) {
		if err = k.enforce(ctx, stored, want); err != nil {
			event, verdict.Reason = reasonRefusedNetwork, config.ReasonInUse
		}
	}
	switch {
	case err == nil:
		verdict.Status, verdict.Reason = metav1.ConditionTrue, config.ReasonAccepted
		verdict.Message = k.inForceNow()
		return verdict
	case k.running == nil:
		err = fmt.Errorf("ClusterNetwork %s can't be used until this is corrected: %w", stored.Name, err)
	default:
		err = fmt.Errorf("ClusterNetwork %s is not followed: %w\nin force stays %s", stored.Name, err, describe(k.running))
	}
	verdict.Message = reconcile.OneLine(err)
	if old, _ := config.Conditions(stored); !k.ruling || !isSaid(old, verdict) {
		klog.FromContext(ctx).Error(err, "The ClusterNetwork can't be followed")
		k.events.Event(stored, corev1.EventTypeWarning, event, verdict.Message)
	}
	return verdict
}

func (k *networkKeeper) inForceNow() string { return "in force: " + describe(k.running) }

// isSaid says whether the verdict is among the conditions, times aside.
func isSaid(conditions []metav1.Condition, verdict metav1.Condition) bool {
	old := meta.FindStatusCondition(conditions, verdict.Type)
	return old != nil && old.Status == verdict.Status && old.Reason == verdict.Reason &&
		old.Message == verdict.Message && old.ObservedGeneration == verdict.ObservedGeneration
}

// enforce puts a network into force, unless something in use forbids that.
func (k *networkKeeper) enforce(ctx context.Context, stored *networkv1.ClusterNetwork, network *config.Network) error {
	if err := k.follow(ctx, network); err != nil {
		return err
	}
	first := k.running == nil
	k.running = network
	klog.FromContext(ctx).Info("The cluster's network", "network", describe(network))
	if !first {
		return nil
	}
	if differences := k.differences(network); len(differences) > 0 {
		k.warn(ctx, stored, reasonDiffersFromFlag, fmt.Errorf("the controller's flags say otherwise and are not followed: %w", errors.Join(differences...)))
	}
	return nil
}

// write puts the verdict, what is in force, and this controller's name on the object, unless that is there already or the
// object has changed since it was judged. Only annotations are written: what the object wants is its author's.
func (k *networkKeeper) write(ctx context.Context, stored *networkv1.ClusterNetwork, verdict metav1.Condition) error {
	conditions, err := config.Conditions(stored)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Writing the conditions anew")
	}
	meta.SetStatusCondition(&conditions, verdict)
	list, err := json.Marshal(conditions)
	if err != nil {
		return fmt.Errorf("encode the conditions of ClusterNetwork %s: %w", stored.Name, err)
	}
	annotations := map[string]string{
		config.ControllerAnnotation: k.name,
		config.ConditionsAnnotation: string(list),
	}
	if k.running != nil {
		if annotations[config.AcceptedAnnotation], err = k.running.Accepted(); err != nil {
			return fmt.Errorf("encode the network in force: %w", err)
		}
	}
	same := true
	for key, value := range annotations {
		same = same && stored.Annotations[key] == value
	}
	if same {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": stored.UID, "resourceVersion": stored.ResourceVersion, "annotations": annotations,
	}})
	if err != nil {
		return fmt.Errorf("encode the annotations of ClusterNetwork %s: %w", stored.Name, err)
	}
	if _, err := k.client.NetworkV1().ClusterNetworks().Patch(ctx, stored.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("write on ClusterNetwork %s what is in force: %w", stored.Name, err)
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

// warn puts an error where people look for it.
func (k *networkKeeper) warn(ctx context.Context, about *networkv1.ClusterNetwork, reason string, err error) {
	klog.FromContext(ctx).Info("Warning of the ClusterNetwork", "reason", reason, "err", err)
	k.events.Event(about, corev1.EventTypeWarning, reason, reconcile.OneLine(err))
}

// describe is a network for messages.
func describe(n *config.Network) string {
	ranges := make([]string, len(n.ClusterNetworks))
	for i, c := range n.ClusterNetworks {
		ranges[i] = c.String()
	}
	mtu := "the nodes' own"
	if n.MTU != 0 {
		mtu = strconv.Itoa(n.MTU)
	}
	if n.RoutableMTU != 0 {
		mtu += fmt.Sprintf(" (routable %d)", n.RoutableMTU)
	}
	return fmt.Sprintf("%s; services %s; mode %s; VXLAN port %d; MTU %s", strings.Join(ranges, ", "), n.ServiceNetwork, n.Mode, n.VXLANPort, mtu)
}
