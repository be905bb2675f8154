package caches

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/tier"
)

func TestMain(m *testing.M) { await.VerifyTestMain(m) }

func TestWaitFor_objectCreatedLater(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	client := fake.NewClientset()
	factory := informers.NewSharedInformerFactory(client, 0)
	services := factory.Core().V1().Services()
	services.Informer()
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())

	reported := make(chan error, 10)
	got := make(chan string, 1)
	go func() {
		name, err := WaitFor(ctx, []cache.SharedIndexInformer{services.Informer()}, func(err error) { reported <- err }, func() (string, error) {
			svc, err := services.Lister().Services("ns").Get("svc")
			if err != nil {
				return "", err
			}
			return svc.Name, nil
		})
		if err != nil {
			t.Error(err)
		}
		got <- name
	}()
	if err := <-reported; err == nil {
		t.Error("reported no error")
	}
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "svc"}}
	if _, err := client.CoreV1().Services("ns").Create(ctx, svc, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if name := <-got; name != "svc" {
		t.Errorf("got %q", name)
	}
	cancel()
	factory.Shutdown()
}

func TestWaitFor_contextEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	factory := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	informer := factory.Core().V1().Services().Informer()
	factory.Start(ctx.Done())
	_, err := WaitFor(ctx, []cache.SharedIndexInformer{informer}, func(error) { cancel() }, func() (int, error) { return 0, errors.New("never") })
	factory.Shutdown()
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// An object that can't be read is not reported as missing.
func TestWaitFor_apiServerUnavailable(t *testing.T) {
	tier.Parallel(t)
	ctx, cancel := context.WithCancel(t.Context())
	client := fake.NewClientset()
	client.PrependReactor("list", "services", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewServiceUnavailable("away")
	})
	factory := informers.NewSharedInformerFactory(client, 0)
	informer := factory.Core().V1().Services().Informer()
	factory.Start(ctx.Done())
	var reported error
	_, err := WaitFor(ctx, []cache.SharedIndexInformer{informer}, func(err error) { reported = err; cancel() }, func() (int, error) { return 0, errors.New("missing") })
	factory.Shutdown()
	if !errors.Is(reported, errAPIServerUnavailable) || !errors.Is(err, context.Canceled) {
		t.Errorf("reported %v and returned %v, want %v and %v", reported, err, errAPIServerUnavailable, context.Canceled)
	}
}
