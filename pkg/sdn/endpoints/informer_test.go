package endpoints

import (
	"context"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
)

// TestInformersStoreCompactObjects runs both transforms in informers: objects that exist before they start and that change later are stored compactly.
func TestInformersStoreCompactObjects(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	client := fake.NewClientset(apiSlice("web-1", endpoint("10.128.0.1 ready")), apiService(nil))
	factory := informers.NewSharedInformerFactory(client, 0)
	ofSlices, ofServices := factory.Discovery().V1().EndpointSlices().Informer(), factory.Core().V1().Services().Informer()
	if err := ofSlices.SetTransform(TransformSlice(serviceNetwork())); err != nil {
		t.Fatal(err)
	}
	if err := ofServices.SetTransform(TransformService); err != nil {
		t.Fatal(err)
	}
	updates, deletions := make(chan *Slice, 1), make(chan *Slice, 1)
	_, err := ofSlices.AddEventHandler(cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(_, current any) { updates <- current.(*Slice) },
		DeleteFunc: func(obj any) { deletions <- obj.(*Slice) },
	})
	if err != nil {
		t.Fatal(err)
	}
	factory.StartWithContext(ctx)
	defer factory.Shutdown()
	defer cancel()
	if !cache.WaitForCacheSync(ctx.Done(), ofSlices.HasSynced, ofServices.HasSynced) {
		t.Fatal("informers did not sync within 90 s")
	}
	obj, exists, err := ofServices.GetStore().GetByKey("ns/web")
	if svc, ok := obj.(*Service); err != nil || !exists || !ok || !svc.Proxied {
		t.Errorf("Service: got %v, %v, %v, want a *Service", obj, exists, err)
	}

	changed := apiSlice("web-1", endpoint("10.128.0.2 ready"))
	changed.ResourceVersion = "8"
	if _, err := client.DiscoveryV1().EndpointSlices("ns").Update(ctx, changed, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := client.DiscoveryV1().EndpointSlices("ns").Delete(ctx, "web-1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for name, from := range map[string]chan *Slice{"update": updates, "deletion": deletions} {
		select {
		case s := <-from:
			if got := s.Endpoints[0].Addr().String(); got != "10.128.0.2" || s.ServiceKey() != "ns/web" {
				t.Errorf("%s: got endpoint %s of %s, want 10.128.0.2 of ns/web", name, got, s.ServiceKey())
			}
		case <-ctx.Done():
			t.Fatalf("no %s within 90 s", name)
		}
	}
}
