package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/ovsdn/ovsdn/test/await"
)

func TestMain(m *testing.M) { await.VerifyTestMain(m) }

// start runs the loop and returns a function that stops it and waits for the last worker.
func start(t *testing.T, l *Loop) (context.Context, func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() { l.Run(ctx, 8) })
	return ctx, func() { cancel(); done.Wait() }
}

func TestLoop_oneWorkerPerKey(t *testing.T) {
	var mu sync.Mutex
	busy := map[string]bool{}
	reconciled := make(chan string, 1000)
	l := New("test", func(_ context.Context, key string) error {
		mu.Lock()
		if busy[key] {
			t.Errorf("%s is reconciled by two workers", key)
		}
		busy[key] = true
		mu.Unlock()
		reconciled <- key
		mu.Lock()
		busy[key] = false
		mu.Unlock()
		return nil
	})
	_, stop := start(t, l)
	for range 50 {
		for _, key := range []string{"a", "b", "c"} {
			l.Add(key)
		}
	}
	seen := map[string]bool{}
	for len(seen) < 3 {
		seen[<-reconciled] = true
	}
	stop()
}

// A failed set-up leaves loops that are never run.
func TestNew_startsNoGoroutine(t *testing.T) {
	l := New("test", func(context.Context, string) error { return nil })
	l.Add("a")
	l.AddUnlessFailing("b")
	l.AddAfter("c", time.Hour)
	await.NoGoroutines(t)
}

func TestLoop_keysAddedBeforeRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reconciled := make(chan string)
		l := New("test", func(_ context.Context, key string) error { reconciled <- key; return nil })
		l.Add("a")
		l.AddAfter("b", time.Hour)
		l.Add("a")
		_, stop := start(t, l)
		defer stop()
		began := time.Now()
		got := []string{<-reconciled, <-reconciled}
		slices.Sort(got)
		if !slices.Equal(got, []string{"a", "b"}) || time.Since(began) > 0 {
			t.Errorf("got keys %q after %v, want a and b immediately", got, time.Since(began))
		}
		l.AddAfter("c", time.Hour)
		if key := <-reconciled; key != "c" || time.Since(began) != time.Hour {
			t.Errorf("got key %q after %v, want c after 1h", key, time.Since(began))
		}
	})
}

func TestLoop_retriesFailure(t *testing.T) {
	done := make(chan struct{})
	failures := 3
	l := New("test", func(context.Context, string) error {
		if failures--; failures >= 0 {
			return errors.New("not yet")
		}
		close(done)
		return nil
	})
	_, stop := start(t, l)
	l.Add("key")
	<-done
	stop()
}

func TestWatch_addsAndDeletes(t *testing.T) {
	client := fake.NewClientset()
	factory := informers.NewSharedInformerFactory(client, 0)
	reconciled := make(chan string, 10)
	l := New("test", func(_ context.Context, key string) error { reconciled <- key; return nil })
	if err := l.Watch(factory.Core().V1().Services().Informer()); err != nil {
		t.Fatal(err)
	}
	ctx, stop := start(t, l)
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())

	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "svc"}}
	services := client.CoreV1().Services("ns")
	if _, err := services.Create(ctx, svc, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if key := <-reconciled; key != "ns/svc" {
		t.Errorf("got key %q, want ns/svc", key)
	}
	if err := services.Delete(ctx, "svc", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if key := <-reconciled; key != "ns/svc" {
		t.Errorf("got key %q, want ns/svc", key)
	}
	stop()
	factory.Shutdown()
}

func TestWatchUnless_ignoresSameUpdates(t *testing.T) {
	client := fake.NewClientset()
	factory := informers.NewSharedInformerFactory(client, 0)
	reconciled := make(chan string, 10)
	l := New("test", func(_ context.Context, key string) error { reconciled <- key; return nil })
	informer := factory.Core().V1().Nodes().Informer()
	sameLabels := func(before, now any) bool { return maps.Equal(before.(*corev1.Node).Labels, now.(*corev1.Node).Labels) }
	if err := l.WatchUnless(informer, sameLabels); err != nil {
		t.Fatal(err)
	}
	ctx, stop := start(t, l)
	factory.Start(ctx.Done())
	cache.WaitForCacheSync(ctx.Done(), informer.HasSynced)

	nodes := client.CoreV1().Nodes()
	must := func(_ *corev1.Node, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	expect := func(want string) {
		t.Helper()
		if key := <-reconciled; key != want {
			t.Errorf("got key %q, want %q", key, want)
		}
	}
	must(nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one"}}, metav1.CreateOptions{}))
	expect("one")
	must(nodes.Update(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", Generation: 2}}, metav1.UpdateOptions{}))
	must(nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "two"}}, metav1.CreateOptions{}))
	expect("two")
	must(nodes.Update(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", Labels: map[string]string{"a": "b"}}}, metav1.UpdateOptions{}))
	expect("one")
	stop()
	if len(reconciled) > 0 {
		t.Errorf("got another key %q", <-reconciled)
	}
	factory.Shutdown()
}

// Reconciling a key may cause events of that key.
func TestAddUnlessFailing_preservesBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l *Loop
		reconciled := make(chan time.Time)
		l = New("test", func(_ context.Context, key string) error {
			l.AddUnlessFailing(key)
			reconciled <- time.Now()
			return errors.New("never")
		})
		_, stop := start(t, l)
		defer stop()
		l.AddUnlessFailing("key")
		var times []time.Time
		for range 4 {
			times = append(times, <-reconciled)
		}
		// The first event precedes the first failure: one attempt follows immediately.
		if took := times[3].Sub(times[0]); took < minBackoff {
			t.Errorf("got 4 attempts within %v, want at least %v", took, minBackoff)
		}
	})
}

func TestLoop_retryDelay(t *testing.T) {
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "hostsubnets"}, "node1", errors.New("another client wrote"))
	for name, tc := range map[string]struct {
		err         error
		least, most time.Duration
	}{
		"failure":                    {errors.New("no answer"), minBackoff, minBackoff},
		"already exists":             {apierrors.NewAlreadyExists(schema.GroupResource{Resource: "hostsubnets"}, "node1"), minBackoff, minBackoff},
		"conflict":                   {fmt.Errorf("update: %w", conflict), minBackoff, minBackoff},
		"user error":                 {UserError{errors.New("no address")}, userErrorRetry, userErrorRetry * 6 / 5},
		"joined user error, wrapped": {fmt.Errorf("sync: %w", errors.Join(errors.New("x"), UserError{errors.New("y")})), userErrorRetry, userErrorRetry * 6 / 5},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				reconciled := make(chan time.Time)
				l := New("test", func(context.Context, string) error { reconciled <- time.Now(); return tc.err })
				_, stop := start(t, l)
				defer stop()
				l.Add("key")
				first := <-reconciled
				if took := (<-reconciled).Sub(first); took < tc.least || took > tc.most {
					t.Errorf("got a retry after %v, want %v to %v", took, tc.least, tc.most)
				}
			})
		})
	}
}

// A UserError resets the backoff, and a change of the object is reconciled immediately.
func TestLoop_userError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		results := []error{errors.New("1"), errors.New("2"), UserError{errors.New("3")}, errors.New("4"), nil}
		reconciled := make(chan time.Time)
		l := New("test", func(context.Context, string) error {
			reconciled <- time.Now()
			err := results[0]
			results = results[1:]
			return err
		})
		_, stop := start(t, l)
		defer stop()
		start := time.Now()
		l.Add("key")
		for i, want := range []time.Duration{0, minBackoff, 3 * minBackoff} {
			if at := (<-reconciled).Sub(start); at != want {
				t.Errorf("attempt %d: got %v, want %v", i, at, want)
			}
		}
		synctest.Wait()
		changed := time.Now()
		l.Add("key")
		for i, want := range []time.Duration{0, minBackoff} {
			if after := (<-reconciled).Sub(changed); after != want {
				t.Errorf("attempt %d after the change: got %v, want %v", i, after, want)
			}
		}
	})
}

func TestReportUserError_sendsEvent(t *testing.T) {
	events := record.NewFakeRecorder(1)
	cause := errors.New("no address")
	err := ReportUserError(events, &corev1.Node{}, "NodeAddressUnusable", errors.Join(cause, errors.New("no subnet")))
	if !errors.Is(err, cause) {
		t.Errorf("got %v, want the cause in it", err)
	}
	if _, is := errors.AsType[UserError](err); !is {
		t.Errorf("got %T, want a UserError", err)
	}
	if got, want := <-events.Events, "Warning NodeAddressUnusable no address; no subnet"; got != want {
		t.Errorf("got Event %q, want %q", got, want)
	}
}

func TestOrNil(t *testing.T) {
	object, broken := &corev1.Node{}, errors.New("broken")
	missing := apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, "node1")
	for name, tc := range map[string]struct {
		got, want   *corev1.Node
		err, wanted error
	}{
		"exists":    {object, object, nil, nil},
		"not found": {object, nil, missing, nil}, // clients return an empty object with that error
		"failure":   {object, nil, broken, broken},
	} {
		if o, err := OrNil(tc.got, tc.err); o != tc.want || !errors.Is(err, tc.wanted) {
			t.Errorf("%s: got %v, %v, want %v, %v", name, o, err, tc.want, tc.wanted)
		}
	}
}
