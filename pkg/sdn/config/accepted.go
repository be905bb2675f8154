package config

import (
	"encoding/json"
	"errors"
	"fmt"

	networkv1 "github.com/openshift/api/network/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Annotations of ClusterNetwork `default`. Its kind is OpenShift's and has no status, so what a status would say is here.
// ovsdn-controller writes them; what others write into them it corrects.
const (
	// AcceptedAnnotation holds the configuration in force, as the JSON of a ClusterNetwork. It differs from the
	// object that carries it after an edit that the network can't follow; an edit is undone by
	//
	//	kubectl get clusternetwork default -o jsonpath='{.metadata.annotations.ovsdn\.io/accepted-configuration}' | kubectl replace -f -
	AcceptedAnnotation = "ovsdn.io/accepted-configuration"

	// ConditionsAnnotation holds a JSON list of metav1.Condition: for now only ConditionAccepted.
	ConditionsAnnotation = "ovsdn.io/conditions"

	// ControllerAnnotation is the name of the leader that validated the object last: the ovsdn-controller, a slash, and the number of its term.
	// Earlier versions wrote the controller alone. A leader only compares it with its own name.
	ControllerAnnotation = "ovsdn.io/controller"
)

// ConditionAccepted says whether the network follows the object as it is now: whether observedGeneration's is in force. It
// is False, with what is wrong and with what stays in force in its message, when it does not.
const ConditionAccepted = "Accepted"

// Reasons of ConditionAccepted.
const (
	ReasonAccepted = "Accepted"
	ReasonInvalid  = "Invalid" // wrong in itself
	ReasonInUse    = "InUse"   // would take away or move what is in use
)

// InForce returns the network that everybody follows: not what the object says, but what ovsdn-controller has accepted of
// it. The error, when there is none, says why.
func InForce(o *networkv1.ClusterNetwork) (*Network, error) {
	value, ok := o.Annotations[AcceptedAnnotation]
	if !ok {
		if _, err := ParseNetwork(o); err != nil {
			return nil, fmt.Errorf("can't be used until this is corrected: %w", err)
		}
		return nil, errors.New("is not accepted by ovsdn-controller yet: is it running?")
	}
	var accepted networkv1.ClusterNetwork
	err := json.Unmarshal([]byte(value), &accepted)
	var n *Network
	if err == nil {
		n, err = ParseNetwork(&accepted)
	}
	if err != nil {
		return nil, fmt.Errorf("annotation %s, which is ovsdn-controller's to write, can't be read: %w", AcceptedAnnotation, err)
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

// Conditions returns what ConditionsAnnotation says, nil if it isn't there.
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
