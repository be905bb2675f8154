package config

import (
	"fmt"
	"strings"

	networkv1 "github.com/openshift/api/network/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Annotations of NetNamespaces that OpenShift does not have. ovsdn-controller writes them.
const (
	// NamespaceUIDAnnotation holds the UID of the Namespace that the NetNamespace was created for, so that a later Namespace of the same name
	// does not inherit its VNID. If it is removed (as after a restore into another cluster), ovsdn-controller sets that of the
	// existing Namespace.
	NamespaceUIDAnnotation = "ovsdn.io/namespace-uid"

	// AssignedVNIDAnnotation repeats the netid that ovsdn-controller has allocated or taken over: a netid that differs
	// was written by another client. While the netid is invalid, this VNID stays in use.
	AssignedVNIDAnnotation = "ovsdn.io/assigned-netid"

	// ChangeRefusedAnnotation holds the reason why the last requested change of the VNID was refused. It is removed
	// with the next change that succeeds.
	ChangeRefusedAnnotation = "ovsdn.io/change-refused"
)

// NetNamespace is the network configuration of a namespace.
type NetNamespace struct {
	Name         string
	UID          types.UID
	NamespaceUID types.UID // "": not created for a Namespace object
	VNID         VNID
	Multicast    bool // among its pods

	Fault error // nil unless a field is invalid; VNID is the assigned one then
}

// ParseNetNamespace reads a NetNamespace object. It is the one place that decides which VNID is in use: the netid, or
// while a field is invalid the VNID in AssignedVNIDAnnotation. If that is missing or invalid too, it returns an error that joins
// all faults.
func ParseNetNamespace(o *networkv1.NetNamespace) (*NetNamespace, error) {
	var f faults
	if o.NetName != o.Name {
		f.addf("netname", "is %q, but must be the object's name: write %q", Shorten(o.NetName), o.Name)
	}
	vnid, err := CheckVNID(o.NetID)
	f.add("netid", err)
	fault := f.join()
	if fault != nil {
		assigned, recorded := o.Annotations[AssignedVNIDAnnotation]
		if !recorded {
			return nil, fault
		}
		if vnid, err = ParseVNID(assigned); err != nil {
			f.add("annotation "+AssignedVNIDAnnotation, err)
			return nil, f.join()
		}
	}
	return &NetNamespace{
		Name:         o.Name,
		UID:          o.UID,
		NamespaceUID: types.UID(o.Annotations[NamespaceUIDAnnotation]),
		VNID:         vnid,
		Multicast:    o.Annotations[networkv1.MulticastEnabledAnnotation] == "true",
		Fault:        fault,
	}, nil
}

// Action is the action of a request in networkv1.ChangePodNetworkAnnotation.
type Action string

// The actions, as `oc adm pod-network` and kubectl-ovsdn write them.
const (
	ActionJoin    Action = "join"    // use another namespace's VNID
	ActionIsolate Action = "isolate" // use a VNID that no other namespace has
	ActionGlobal  Action = "global"  // use GlobalVNID
)

// refusedPrefix marks the value of networkv1.ChangePodNetworkAnnotation as a refused request. The annotation is not removed, because
// `oc adm pod-network` takes its absence for success.
const refusedPrefix = "refused:"

// Change is the value of networkv1.ChangePodNetworkAnnotation.
type Change struct {
	Action Action
	To     string // the namespace to join; "" for the other actions
}

// ParseChange parses `join:NAMESPACE`, `isolate` or `global`; the last two also with a trailing colon.
func ParseChange(s string) (Change, error) {
	action, to, _ := strings.Cut(s, ":")
	c := Change{Action: Action(action), To: to}
	switch {
	case c.Action == ActionJoin:
		if faults := validation.IsDNS1123Label(to); len(faults) > 0 {
			return Change{}, fmt.Errorf("%q names no namespace: write %s:NAMESPACE", Shorten(s), ActionJoin)
		}
		return c, nil
	case (c.Action == ActionIsolate || c.Action == ActionGlobal) && to == "":
		return c, nil
	}
	return Change{}, fmt.Errorf("%q is not a change of a network: write %s:NAMESPACE, %s or %s", Shorten(s), ActionJoin, ActionIsolate, ActionGlobal)
}

// String returns the value as OpenShift writes it.
func (c Change) String() string {
	if c.To == "" {
		return string(c.Action)
	}
	return string(c.Action) + ":" + c.To
}

// RefusedChange returns the value of networkv1.ChangePodNetworkAnnotation for a refused request, which is no request itself.
func RefusedChange(request string) string { return refusedPrefix + Shorten(request) }

// RequestedChange returns the change that the object requests, and whether it requests one, valid or not. A refused request
// does not count.
func RequestedChange(o *networkv1.NetNamespace) (c Change, requested bool, err error) {
	value, requested := o.Annotations[networkv1.ChangePodNetworkAnnotation]
	if !requested || strings.HasPrefix(value, refusedPrefix) {
		return Change{}, false, nil
	}
	if c, err = ParseChange(value); err != nil {
		err = fmt.Errorf("annotation %s: %w", networkv1.ChangePodNetworkAnnotation, err)
	}
	return c, true, err
}
