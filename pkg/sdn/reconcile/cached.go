package reconcile

import "k8s.io/client-go/tools/cache"

// Cached returns the object from the informer's cache, or nil.
func Cached[T any](informer cache.SharedIndexInformer, key string) *T {
	obj, exists, err := informer.GetStore().GetByKey(key)
	if err != nil || !exists {
		return nil
	}
	o, _ := obj.(*T)
	return o
}
