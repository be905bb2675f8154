package unidling

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
)

// Users can create any number of Events: they are read page by page, and not stored.
func TestInformer_pages(t *testing.T) {
	const pages = 3
	kube := fake.NewClientset()
	kube.PrependReactor("list", "events", func(action k8stesting.Action) (bool, runtime.Object, error) {
		options := action.(k8stesting.ListActionImpl).ListOptions
		if options.Limit != pageSize || options.FieldSelector == "" {
			t.Errorf("got options %+v, want a page of the Events of agents", options)
		}
		page := 1
		if options.Continue != "" {
			page = int(options.Continue[0] - '0')
		}
		list := &corev1.EventList{ListMeta: metav1.ListMeta{ResourceVersion: "7"}, Items: []corev1.Event{{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("event", page)}}}}
		if page < pages {
			list.Continue = fmt.Sprint(page + 1)
		}
		return true, list, nil
	})
	i := NewInformer(kube)
	var got []string
	i.observe = func(e *corev1.Event, _ bool) { got = append(got, e.Name) }
	list, err := i.ListWithContext(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"event1", "event2", "event3"}; !slices.Equal(got, want) {
		t.Errorf("got Events %q, want %q", got, want)
	}
	if l := list.(*corev1.EventList); meta.LenList(list) != 0 || l.ResourceVersion != "7" || l.Continue != "" {
		t.Errorf("got %+v, want an empty list of version 7", l)
	}
}

// A second controller would take the Events of the first.
func TestNew_oneController(t *testing.T) {
	i := NewInformer(fake.NewClientset())
	if _, err := New(Clients{}, i); err != nil {
		t.Fatal(err)
	}
	if _, err := New(Clients{}, i); err == nil {
		t.Error("got no error for a second controller of an informer")
	}
}
