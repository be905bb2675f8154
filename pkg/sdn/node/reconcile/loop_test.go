package reconcile

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// start runs the loop and returns a function that stops it and waits for the last worker.
func start(t *testing.T, l *Loop) (context.Context, func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() { l.Run(ctx) })
	return ctx, func() { cancel(); done.Wait() }
}

func TestOneKeyNeverTwiceAtATime(t *testing.T) {
	var mu sync.Mutex
	busy := map[string]bool{}
	served := make(chan string, 1000)
	l := New("test", 8, func(_ context.Context, key string) error {
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

func TestFailureIsTriedAgain(t *testing.T) {
	done := make(chan struct{})
	failures := 3
	l := New("test", 1, func(context.Context, string) error {
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
	l := New("test", 1, func(_ context.Context, key string) error { served <- key; return nil })
	if _, err := l.Watch(factory.Core().V1().Services().Informer()); err != nil {
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

// Serving a key may cause events of that key. They do not shorten its back-off.
func TestOwnEventsDoNotShortenTheBackOff(t *testing.T) {
	var l *Loop
	var served []time.Time
	done := make(chan struct{})
	l = New("test", 1, func(_ context.Context, key string) error {
		l.AddUnlessFailing(key)
		if served = append(served, time.Now()); len(served) == 4 {
			close(done)
		}
		return errors.New("never")
	})
	_, stop := start(t, l)
	l.AddUnlessFailing("key")
	<-done
	stop()
	// The first event comes before the first failure: one attempt follows at once.
	if took := served[3].Sub(served[0]); took < retryFirst {
		t.Errorf("4 attempts came within %v: the back-off begins with %v", took, retryFirst)
	}
}
