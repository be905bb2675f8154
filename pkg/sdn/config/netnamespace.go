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
	// NamespaceUIDAnnotation holds the UID of the Namespace that the NetNamespace was made for: one of the same name that
	// is made later does not inherit what this one could reach. Remove it, and ovsdn-controller takes the object over
	// for the Namespace that there is (after a restore into another cluster, say).
	NamespaceUIDAnnotation = "ovsdn.io/namespace-uid"

	// AssignedVNIDAnnotation repeats the netid that ovsdn-controller has given, or has taken over: a netid that differs
	// was written by somebody else.
	AssignedVNIDAnnotation = "ovsdn.io/assigned-netid"

	// ChangeRefusedAnnotation says why the last change that was asked for by networkv1.ChangePodNetworkAnnotation was not
	// made. It goes with the next one that is.
	ChangeRefusedAnnotation = "ovsdn.io/change-refused"
)

// NetNamespace is what a namespace has of the network.
type NetNamespace struct {
	Name         string
	NamespaceUID types.UID // "": not made for a Namespace object
	VNID         VNID
	Multicast    bool // among its pods
}

// ParseNetNamespace reads a NetNamespace object. The error joins all its faults. A pod of a NetNamespace with a fault has no
// network: it would be in another's.
func ParseNetNamespace(o *networkv1.NetNamespace) (*NetNamespace, error) {
	var f faults
	if o.NetName != o.Name {
		f.addf("netname", "is %q, but must be the object's name: write %q", o.NetName, o.Name)
	}
	vnid, err := CheckVNID(o.NetID)
	f.add("netid", err)
	if err := f.join(); err != nil {
		return nil, err
	}
	return &NetNamespace{
		Name:         o.Name,
		NamespaceUID: types.UID(o.Annotations[NamespaceUIDAnnotation]),
		VNID:         vnid,
		Multicast:    o.Annotations[networkv1.MulticastEnabledAnnotation] == "true",
	}, nil
}

// Action is what networkv1.ChangePodNetworkAnnotation asks for.
type Action string

// The actions, as `oc adm pod-network` and kubectl-ovsdn write them.
const (
	ActionJoin    Action = "join"    // have another namespace's VNID
	ActionIsolate Action = "isolate" // have a VNID of one's own
	ActionGlobal  Action = "global"  // have GlobalVNID
)

// Change is the value of networkv1.ChangePodNetworkAnnotation.
type Change struct {
	Action Action
	To     string // the namespace to join; "" for the other actions
}

// ParseChange reads a change: `join:NAMESPACE`, `isolate` or `global`; the last two also with a colon behind them.
func ParseChange(s string) (Change, error) {
	action, to, _ := strings.Cut(s, ":")
	c := Change{Action: Action(action), To: to}
	switch {
	case c.Action == ActionJoin:
		if faults := validation.IsDNS1123Label(to); len(faults) > 0 {
			return Change{}, fmt.Errorf("%q names no namespace: write %s:NAMESPACE", s, ActionJoin)
		}
		return c, nil
	case (c.Action == ActionIsolate || c.Action == ActionGlobal) && to == "":
		return c, nil
	}
	return Change{}, fmt.Errorf("%q is no change of a network: write %s:NAMESPACE, %s or %s", s, ActionJoin, ActionIsolate, ActionGlobal)
}

// String returns what OpenShift writes.
func (c Change) String() string {
	if c.To == "" {
		return string(c.Action)
	}
	return string(c.Action) + ":" + c.To
}

// RequestedChange returns the change that the object asks for, and whether it asks for one, be it a wrong one.
func RequestedChange(o *networkv1.NetNamespace) (c Change, asked bool, err error) {
	value, asked := o.Annotations[networkv1.ChangePodNetworkAnnotation]
	if !asked {
		return Change{}, false, nil
	}
	if c, err = ParseChange(value); err != nil {
		err = fmt.Errorf("annotation %s: %w", networkv1.ChangePodNetworkAnnotation, err)
	}
	return c, true, err
}
