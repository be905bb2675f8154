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

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start runs the loop and returns a function that stops it and waits for the last worker.
func start(t *testing.T, l *Loop) (context.Context, func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() { l.Run(ctx, 8) })
	return ctx, func() { cancel(); done.Wait() }
}

func TestOneKeyNeverTwiceAtATime(t *testing.T) {
	var mu sync.Mutex
	busy := map[string]bool{}
	served := make(chan string, 1000)
	l := New("test", func(_ context.Context, key string) error {
		mu.Lock()
		if busy[key] {
			t.Errorf("%s is served twice at a time", key)
		}
		busy[key] = true
		mu.Unlock()
		served <- key
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
		seen[<-served] = true
	}
	stop()
}

// A set-up that fails on its way makes loops that nobody runs.
func TestLoopThatNeverRunsLeavesNothing(t *testing.T) {
	l := New("test", func(context.Context, string) error { return nil })
	l.Add("a")
	l.AddUnlessFailing("b")
	l.AddAfter("c", time.Hour)
	goleak.VerifyNone(t)
}

func TestKeysFromBeforeTheRunAreServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		served := make(chan string)
		l := New("test", func(_ context.Context, key string) error { served <- key; return nil })
		l.Add("a")
		l.AddAfter("b", time.Hour)
		l.Add("a")
		_, stop := start(t, l)
		defer stop()
		began := time.Now()
		got := []string{<-served, <-served}
		slices.Sort(got)
		if !slices.Equal(got, []string{"a", "b"}) || time.Since(began) > 0 {
			t.Errorf("served %q after %v", got, time.Since(began))
		}
		l.AddAfter("c", time.Hour)
		if key := <-served; key != "c" || time.Since(began) != time.Hour {
			t.Errorf("served %q after %v", key, time.Since(began))
		}
	})
}

func TestFailureIsTriedAgain(t *testing.T) {
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

func TestWatchQueuesWhatComesAndGoes(t *testing.T) {
	client := fake.NewClientset()
	factory := informers.NewSharedInformerFactory(client, 0)
	served := make(chan string, 10)
	l := New("test", func(_ context.Context, key string) error { served <- key; return nil })
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
	if key := <-served; key != "ns/svc" {
		t.Errorf("served %q", key)
	}
	if err := services.Delete(ctx, "svc", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if key := <-served; key != "ns/svc" {
		t.Errorf("served %q", key)
	}
	stop()
	factory.Shutdown()
}

func TestWatchUnlessPassesOverWhatIsTheSame(t *testing.T) {
	client := fake.NewClientset()
	factory := informers.NewSharedInformerFactory(client, 0)
	served := make(chan string, 10)
	l := New("test", func(_ context.Context, key string) error { served <- key; return nil })
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
		if key := <-served; key != want {
			t.Errorf("served %q, want %q", key, want)
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
	if len(served) > 0 {
		t.Errorf("served %q too", <-served)
	}
	factory.Shutdown()
}

// Serving a key may cause events of that key. They do not shorten its back-off.
func TestOwnEventsDoNotShortenTheBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l *Loop
		served := make(chan time.Time)
		l = New("test", func(_ context.Context, key string) error {
			l.AddUnlessFailing(key)
			served <- time.Now()
			return errors.New("never")
		})
		_, stop := start(t, l)
		defer stop()
		l.AddUnlessFailing("key")
		var times []time.Time
		for range 4 {
			times = append(times, <-served)
		}
		// The first event comes before the first failure: one attempt follows at once.
		if took := times[3].Sub(times[0]); took < retryFirst {
			t.Errorf("4 attempts came within %v: the back-off begins with %v", took, retryFirst)
		}
	})
}

// How soon a key is served again depends on what its last attempt came to.
func TestPaceOfRetries(t *testing.T) {
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "hostsubnets"}, "node1", errors.New("somebody wrote"))
	for name, tc := range map[string]struct {
		err           error
		least, utmost time.Duration
	}{
		"failure":                        {errors.New("no answer"), retryFirst, retryFirst},
		"exists already":                 {apierrors.NewAlreadyExists(schema.GroupResource{Resource: "hostsubnets"}, "node1"), retryFirst, retryFirst},
		"conflict":                       {fmt.Errorf("update: %w", conflict), retryFirst, retryFirst},
		"complaint":                      {Complaint{errors.New("no address")}, complaintInterval, complaintInterval * 6 / 5},
		"complaint among others, nested": {fmt.Errorf("sync: %w", errors.Join(errors.New("x"), Complaint{errors.New("y")})), complaintInterval, complaintInterval * 6 / 5},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				served := make(chan time.Time)
				l := New("test", func(context.Context, string) error { served <- time.Now(); return tc.err })
				_, stop := start(t, l)
				defer stop()
				l.Add("key")
				first := <-served
				if took := (<-served).Sub(first); took < tc.least || took > tc.utmost {
					t.Errorf("served again after %v, not %v to %v", took, tc.least, tc.utmost)
				}
			})
		})
	}
}

// The back-off doubles to its end, a complaint resets it, and a change of the object does not wait for the pace of complaints.
func TestComplaintWaitsForAChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		results := []error{errors.New("1"), errors.New("2"), Complaint{errors.New("3")}, errors.New("4"), nil}
		served := make(chan time.Time)
		l := New("test", func(context.Context, string) error {
			served <- time.Now()
			err := results[0]
			results = results[1:]
			return err
		})
		_, stop := start(t, l)
		defer stop()
		start := time.Now()
		l.Add("key")
		for i, want := range []time.Duration{0, retryFirst, 3 * retryFirst} {
			if at := (<-served).Sub(start); at != want {
				t.Errorf("attempt %d at %v, want %v", i, at, want)
			}
		}
		synctest.Wait()
		changed := time.Now()
		l.Add("key")
		for i, want := range []time.Duration{0, retryFirst} {
			if after := (<-served).Sub(changed); after != want {
				t.Errorf("attempt %d %v after the change, want %v", i, after, want)
			}
		}
	})
}

func TestComplainSaysItOnTheObject(t *testing.T) {
	events := record.NewFakeRecorder(1)
	cause := errors.New("no address")
	err := Complain(events, &corev1.Node{}, "NodeAddressUnusable", errors.Join(cause, errors.New("no subnet")))
	if !errors.Is(err, cause) {
		t.Errorf("the cause is lost: %v", err)
	}
	if _, is := errors.AsType[Complaint](err); !is {
		t.Errorf("%T is no Complaint", err)
	}
	if said := <-events.Events; said != "Warning NodeAddressUnusable no address; no subnet" {
		t.Errorf("said %q", said)
	}
}

func TestOrNil(t *testing.T) {
	object, broken := &corev1.Node{}, errors.New("broken")
	missing := apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, "node1")
	for name, tc := range map[string]struct {
		got, want   *corev1.Node
		err, wanted error
	}{
		"there":     {object, object, nil, nil},
		"not there": {object, nil, missing, nil}, // clients return an empty object with that error
		"unknown":   {object, nil, broken, broken},
	} {
		if o, err := OrNil(tc.got, tc.err); o != tc.want || !errors.Is(err, tc.wanted) {
			t.Errorf("%s: %v, %v", name, o, err)
		}
	}
}
