package config

import (
	"encoding/json"
	"errors"
	"fmt"

	networkv1 "github.com/openshift/api/network/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Annotations of ClusterNetwork `default`, in place of a status, which OpenShift's API does not have. ovsdn-controller writes them, and
// corrects edits by other clients.
const (
	// AcceptedAnnotation holds the active configuration, as the JSON of a ClusterNetwork. It differs from the
	// object after an edit that was not accepted.
	//
	// To undo such an edit:
	//
	//	kubectl get clusternetwork default -o jsonpath='{.metadata.annotations.ovsdn\.io/accepted-configuration}' | kubectl replace -f -
	AcceptedAnnotation = "ovsdn.io/accepted-configuration"

	// ConditionsAnnotation holds a JSON list of metav1.Condition. Its only type is Accepted.
	ConditionsAnnotation = "ovsdn.io/conditions"

	// ControllerAnnotation is the name of the leader that validated the object last: the ovsdn-controller, a slash, and the number of its term.
	// Earlier versions wrote the controller alone. A leader only compares it with its own name.
	ControllerAnnotation = "ovsdn.io/controller"
)

// ConditionAccepted is True if the network of the observedGeneration is active. If it is False, its message has the faults and the network
// that is still active.
const ConditionAccepted = "Accepted"

// Reasons of ConditionAccepted.
const (
	// True, by ovsdn-controller: the network of the observedGeneration is active.
	ReasonAccepted = "Accepted"

	// False, by ovsdn-controller: a field is invalid; the message has the network that is still active.
	ReasonInvalid = "Invalid"

	// False, by ovsdn-controller: the change conflicts with subnets or addresses in use; the message has the network that is still active.
	ReasonInUse = "InUse"
)

// ActiveNetwork returns the network that ovsdn-controller accepted last, which may differ from the fields of the object. If it has accepted
// none, the error has the cause. A configuration without service proxy was accepted by a controller of an earlier version, which does not know it: the object's applies,
// since nodes without kube-proxy must not change to it during an upgrade or after a rollback.
func ActiveNetwork(o *networkv1.ClusterNetwork) (*Network, error) {
	value, ok := o.Annotations[AcceptedAnnotation]
	if !ok {
		if _, err := ParseNetwork(o); err != nil {
			return nil, fmt.Errorf("can't be used until this is corrected: %w", err)
		}
		return nil, errors.New("is not accepted by ovsdn-controller yet; check that it runs")
	}
	var accepted networkv1.ClusterNetwork
	err := json.Unmarshal([]byte(value), &accepted)
	var n *Network
	if err == nil {
		n, err = ParseNetwork(&accepted)
	}
	if err != nil {
		return nil, fmt.Errorf("annotation %s, which only ovsdn-controller may write, is invalid: %w", AcceptedAnnotation, err)
	}
	if n.ServiceProxy == ServiceProxyUnset {
		if p, err := ParseServiceProxy(o.Annotations[ServiceProxyAnnotation]); err == nil { // else the controller reports it
			n.ServiceProxy = p
		}
	}
	return n, nil
}

// Accepted returns the network as AcceptedAnnotation holds it.
func (n *Network) Accepted() (string, error) {
	o := n.Object()
	o.TypeMeta = metav1.TypeMeta{APIVersion: networkv1.GroupVersion.String(), Kind: "ClusterNetwork"}
	value, err := json.Marshal(o)
	return string(value), err
}

// Conditions parses ConditionsAnnotation. Without the annotation it returns nil.
func Conditions(o *networkv1.ClusterNetwork) ([]metav1.Condition, error) {
	value, ok := o.Annotations[ConditionsAnnotation]
	if !ok {
		return nil, nil
	}
	var list []metav1.Condition
	if err := json.Unmarshal([]byte(value), &list); err != nil {
		return nil, fmt.Errorf("annotation %s: %w", ConditionsAnnotation, err)
	}
	return list, nil
}
