package master

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
)

// One controller works at a time, the holder of a Lease. A leader that dies is followed by another after leaseDuration and
// up to 2.2 retryPeriods, so within 13 s; one that stops hands over within 2.2 retryPeriods. A leader that can't reach the
// API server for renewDeadline stops working before anybody else begins.
//
// The Lease is for peace, not for safety: see subnet's propose.go and networkKeeper for what a leader that does not know
// that it is none can't do.
const (
	leaseName     = component
	leaseDuration = 10 * time.Second
	renewDeadline = 7 * time.Second
	retryPeriod   = time.Second
	leaseTimeout  = 3 * time.Second // of one call: a server that hangs leaves time for another try

	// A term that ended by a quarrel is not followed by the next at once.
	quarrelPause = 5 * time.Second
)

// newName returns what tells this controller from all others, also from the next one in the same pod.
func newName() (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("name of this controller: %w", err)
	}
	return host + "_" + string(uuid.NewUUID()), nil
}

// termName returns the unique name of one term of a controller. If two terms had one name, the second would not write it to the ClusterNetwork
// again, and the write of another leader from between the two would not conflict.
func termName(controller string, term int) string { return fmt.Sprintf("%s/%d", controller, term) }

// rule runs one term after the other without asking anybody, until the context ends.
func rule(ctx context.Context, term func(context.Context) error) error {
	for ctx.Err() == nil {
		if err := endTerm(ctx, term(ctx)); err != nil {
			return err
		}
	}
	return nil
}

// elect runs a term whenever this controller gets the lease, until the context ends. The term's context ends with the
// lease; the lease is given back only after the term has ended.
func elect(ctx context.Context, lock resourcelock.Interface, health *health, term func(context.Context) error) error {
	for ctx.Err() == nil {
		elected := make(chan context.Context)
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Name: leaseName, Lock: lock,
			LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
			ReleaseOnCancel: true,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(lease context.Context) {
					select {
					case elected <- lease:
					case <-lease.Done():
					}
				},
				OnStoppedLeading: func() {},
			},
		})
		if err != nil {
			return fmt.Errorf("leader election: %w", err)
		}
		health.follow(elector)
		// The election outlives the context by the end of the term.
		election, stop := context.WithCancel(context.WithoutCancel(ctx))
		done := make(chan struct{})
		go func() {
			defer close(done)
			elector.Run(election)
		}()
		select {
		case <-ctx.Done():
		case <-done: // the lease was lost before the term could begin
		case lease := <-elected:
			lease, cancel := context.WithCancel(lease)
			unlink := context.AfterFunc(ctx, cancel)
			err = term(lease)
			unlink()
			cancel()
		}
		stop()
		<-done
		if err := endTerm(ctx, err); err != nil {
			return err
		}
	}
	return nil
}

// endTerm returns an error that another term would not mend.
func endTerm(ctx context.Context, err error) error {
	deposed, is := errors.AsType[*deposedError](err)
	if !is {
		return err
	}
	klog.FromContext(ctx).Error(deposed, "Stopped working")
	pause := time.NewTimer(quarrelPause)
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-ctx.Done():
	}
	return nil
}

// lock is the Lease, with what client-go's leaves out.
type lock struct {
	resourcelock.Interface
	holder      string // as last seen
	transitions atomic.Int64
}

// term is how often the lease has changed hands: for its holder, the number of the term.
func (l *lock) term() int { return int(l.transitions.Load()) }

func (l *lock) see(record *resourcelock.LeaderElectionRecord) {
	l.holder = record.HolderIdentity
	l.transitions.Store(int64(record.LeaderTransitions))
}

func newLock(leases coordinationv1.LeasesGetter, namespace, name string) *lock {
	return &lock{Interface: &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: namespace, Name: leaseName},
		Client:     leases,
		LockConfig: resourcelock.ResourceLockConfig{Identity: name},
	}}
}

// Get is bounded in time: a candidate's call would else hang as long as the connection does.
func (l *lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	record, raw, err := l.Interface.Get(ctx)
	if err == nil {
		l.see(record)
	}
	return record, raw, err
}

// Create says what to do about a namespace that is not there.
func (l *lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	err := l.Interface.Create(ctx, record)
	switch {
	case err == nil:
		l.see(&record)
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%w: apply the manifests in deploy/rbac, or name another namespace with --leader-elect-namespace", err)
	}
	return err
}

// Update gives a lease back only if it is still this controller's: client-go's release reads the lease but does not
// look who holds it, so that a leader that slept through its lease would take it from the next one.
func (l *lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if record.HolderIdentity == "" && l.holder != l.Identity() {
		return fmt.Errorf("not given back: %s holds it", l.holder)
	}
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	err := l.Interface.Update(ctx, record)
	if err == nil {
		l.see(&record)
	}
	return err
}
