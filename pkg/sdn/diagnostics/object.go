package diagnostics

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Kind is a kind of object that has flows, as users write it.
type Kind string

// The kinds of objects.
const (
	KindPod                  Kind = "pod"
	KindNamespace            Kind = "namespace"
	KindService              Kind = "service"
	KindNetworkPolicy        Kind = "networkpolicy"
	KindClusterNetworkPolicy Kind = "clusternetworkpolicy"
	KindEgressNetworkPolicy  Kind = "egressnetworkpolicy"
	KindNode                 Kind = "node"
)

// Kinds returns all kinds of objects.
func Kinds() []Kind {
	return []Kind{KindPod, KindNamespace, KindService, KindNetworkPolicy, KindClusterNetworkPolicy, KindEgressNetworkPolicy, KindNode}
}

// IsNamespaced reports whether objects of the kind are in a namespace.
func (k Kind) IsNamespaced() bool {
	return k != KindNamespace && k != KindClusterNetworkPolicy && k != KindNode
}

// form returns how objects of the kind are written.
func (k Kind) form() string {
	if k.IsNamespaced() {
		return string(k) + "/NAMESPACE/NAME"
	}
	return string(k) + "/NAME"
}

// Object names an object whose flows are wanted.
type Object struct {
	Kind      Kind
	Namespace string // "" if the kind is not namespaced
	Name      string
}

func (o Object) String() string {
	if o.Kind.IsNamespaced() {
		return string(o.Kind) + "/" + o.Namespace + "/" + o.Name
	}
	return string(o.Kind) + "/" + o.Name
}

// String returns the object with its rule.
func (o TraceObject) String() string {
	if o.Rule == "" {
		return o.Object
	}
	return o.Object + " (" + o.Rule + ")"
}

// MaxQuoted is the number of characters of an invalid value that errors repeat.
const MaxQuoted = 100

// ParseObject parses the value of ObjectParameter. The error lists the valid forms.
func ParseObject(text string) (Object, error) {
	kind, rest, _ := strings.Cut(text, "/")
	o := Object{Kind: Kind(kind), Name: rest}
	if !slices.Contains(Kinds(), o.Kind) {
		return Object{}, fmt.Errorf("object %.*q: the kind is unknown; write one of %s", MaxQuoted, text, forms())
	}
	if o.Kind.IsNamespaced() {
		o.Namespace, o.Name, _ = strings.Cut(rest, "/")
		if faults := validation.IsDNS1123Label(o.Namespace); len(faults) > 0 {
			return Object{}, fmt.Errorf("object %.*q: write %s: the namespace is invalid: %s", MaxQuoted, text, o.Kind.form(), faults[0])
		}
	}
	if faults := o.Kind.validateName(o.Name); len(faults) > 0 {
		return Object{}, fmt.Errorf("object %.*q: write %s: the name is invalid: %s", MaxQuoted, text, o.Kind.form(), faults[0])
	}
	return o, nil
}

func (k Kind) validateName(name string) []string {
	if k == KindNamespace {
		return validation.IsDNS1123Label(name)
	}
	return validation.IsDNS1123Subdomain(name)
}

func forms() string {
	var all []string
	for _, k := range Kinds() {
		all = append(all, k.form())
	}
	return strings.Join(all, ", ")
}
