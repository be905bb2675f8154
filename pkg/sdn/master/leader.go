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

	"github.com/ovsdn/ovsdn/pkg/sdn/pause"
)

// One controller leads at a time, the holder of a Lease. If a leader dies, another takes over within leaseDuration and
// 2.2 retryPeriods (13 s); if a leader stops, within 2.2 retryPeriods. A leader that can't reach the API server for
// renewDeadline stops before another controller can acquire the Lease.
//
// The Lease avoids conflicts, but safety does not depend on it: subnet/proposal.go and networkController handle a leader that has lost its
// Lease without noticing.
const (
	leaseName     = component
	leaseDuration = 10 * time.Second
	renewDeadline = 7 * time.Second
	retryPeriod   = time.Second
	leaseTimeout  = 3 * time.Second // of one API call, short enough for a retry before renewDeadline

	// conflictBackoff is the pause after a term that ended because another controller leads.
	conflictBackoff = 5 * time.Second
)

// newIdentity returns a unique name for this process. A restarted container has another one.
func newIdentity() (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("get host name: %w", err)
	}
	return host + "_" + string(uuid.NewUUID()), nil
}

// termName returns the unique name of one term of a controller. If two terms had one name, the second would not write it to the ClusterNetwork
// again, and the write of another leader from between the two would not conflict.
func termName(controller string, term int) string { return fmt.Sprintf("%s/%d", controller, term) }

// runTerms runs one term after the other without leader election, until the context ends.
func runTerms(ctx context.Context, term func(context.Context) error) error {
	for ctx.Err() == nil {
		if err := endTerm(ctx, term(ctx)); err != nil {
			return err
		}
	}
	return nil
}

// elect runs a term whenever this controller acquires the lease, until the context ends. The term's context ends with the
// lease. The lease is released only after the term has ended.
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
		health.setElector(elector)
		// The lease is renewed until the term has ended, which may be after ctx ends.
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

// endTerm returns errors that end the process. After a *supersededError it waits for conflictBackoff and returns nil.
func endTerm(ctx context.Context, err error) error {
	superseded, is := errors.AsType[*supersededError](err)
	if !is {
		return err
	}
	klog.FromContext(ctx).Error(superseded, "Stopped leading", "retryAfter", conflictBackoff)
	pause.For(ctx, conflictBackoff)
	return nil
}

// lock wraps client-go's Lease lock with timeouts, a check of the holder before a release, and the number of transitions.
type lock struct {
	resourcelock.Interface
	holder      string // as last read or written
	transitions atomic.Int64
}

// term returns the leaseTransitions of the lease: for its holder, the number of the term.
func (l *lock) term() int { return int(l.transitions.Load()) }

func (l *lock) observe(record *resourcelock.LeaderElectionRecord) {
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

// Get reads the lease with a timeout: client-go sets none for a candidate, whose call hangs as long as its connection.
func (l *lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	record, raw, err := l.Interface.Get(ctx)
	if err == nil {
		l.observe(record)
	}
	return record, raw, err
}

// Create creates the lease. If the namespace does not exist, the error has the remedy.
func (l *lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	err := l.Interface.Create(ctx, record)
	switch {
	case err == nil:
		l.observe(&record)
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%w: apply the manifests in deploy/rbac, or name another namespace with --leader-elect-namespace", err)
	}
	return err
}

// Update writes the lease. It refuses to release one that another controller holds: client-go's release does not check the holder, so a
// leader that was suspended past its lease would release that of its successor.
func (l *lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	if record.HolderIdentity == "" && l.holder != l.Identity() {
		return fmt.Errorf("release lease: held by %s", l.holder)
	}
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	err := l.Interface.Update(ctx, record)
	if err == nil {
		l.observe(&record)
	}
	return err
}
