package endpoints

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// object is the metadata that a Slice or Service retains: enough for the keys of a cache and for Events. It implements metav1.ObjectMetaAccessor
// instead of metav1.Object, whose ObjectMeta has 232 bytes.
type object struct {
	namespace, name string
	uid             types.UID
	resourceVersion string
}

func newObject(o *metav1.ObjectMeta) object {
	return object{namespace: o.Namespace, name: o.Name, uid: o.UID, resourceVersion: o.ResourceVersion}
}

// GetNamespace returns the object's namespace.
func (o *object) GetNamespace() string { return o.namespace }

// GetName returns the object's name.
func (o *object) GetName() string { return o.name }

// GetObjectMeta returns a new ObjectMeta with the namespace, name, UID and resource version, from which meta.Accessor and so
// cache.MetaNamespaceKeyFunc read them. Changes of it do not change the object.
func (o *object) GetObjectMeta() metav1.Object {
	return &metav1.ObjectMeta{Namespace: o.namespace, Name: o.name, UID: o.uid, ResourceVersion: o.resourceVersion}
}

// kind returns the kind of an API object, by which Events refer to it.
func kind(gv schema.GroupVersion, name string) schema.ObjectKind {
	return &metav1.TypeMeta{APIVersion: gv.String(), Kind: name}
}

// sharePrefix returns text as a part of whole if whole starts with it, so that one of them is retained in memory.
func sharePrefix(text, whole string) string {
	if strings.HasPrefix(whole, text) {
		return whole[:len(text)]
	}
	return text
}
