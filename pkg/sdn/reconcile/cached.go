package reconcile

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"
)

// OnlyNamed limits an informer to the object with the name.
func OnlyNamed(name string) func(*metav1.ListOptions) {
	selector := fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	return func(o *metav1.ListOptions) { o.FieldSelector = selector }
}

// Cached returns the object from the informer's cache, or nil.
func Cached[T any](informer cache.SharedIndexInformer, key string) *T {
	obj, exists, err := informer.GetStore().GetByKey(key)
	if err != nil || !exists {
		return nil
	}
	o, _ := obj.(*T)
	return o
}
