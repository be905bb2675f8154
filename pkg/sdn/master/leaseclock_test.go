package master

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// The holder of a Lease was killed, and the clocks of holder and candidate differ by an hour in either direction. The candidate waits for
// leaseDuration from its first observation.
func TestElect_clocksDiffer(t *testing.T) {
	for _, off := range []time.Duration{time.Hour, -time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			const namespace, holder = "ovsdn-system", "dead"
			renewed, seconds, transitions, name := metav1.NewMicroTime(time.Now().Add(off)), int32(leaseDuration/time.Second), int32(3), holder
			client := fake.NewClientset(&coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: leaseName},
				Spec: coordinationv1.LeaseSpec{
					HolderIdentity: &name, AcquireTime: &renewed, RenewTime: &renewed, LeaseDurationSeconds: &seconds, LeaseTransitions: &transitions,
				},
			})
			ctx, stop := context.WithCancel(t.Context())
			began, led := time.Now(), make(chan time.Duration, 1)
			done := make(chan error, 1)
			go func() {
				done <- elect(ctx, newLock(client.CoordinationV1(), namespace, "me"), &health{}, func(term context.Context) error {
					led <- time.Since(began)
					<-term.Done()
					return nil
				})
			}()
			if after := <-led; after < leaseDuration || after > leaseDuration+3*retryPeriod {
				t.Errorf("clocks differ by %v: got a leader after %v, want %v to %v", off, after, leaseDuration, leaseDuration+3*retryPeriod)
			}
			stop()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
}
