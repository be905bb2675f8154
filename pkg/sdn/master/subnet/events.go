package subnet

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Reasons of Events. People and alerts match them: they don't change.
const (
	reasonNoAddress = "NodeAddressUnusable" // the node has no address that others can tunnel to
	reasonNoSubnet  = "NoHostSubnet"        // the node can't be given one
	reasonInvalid   = "InvalidHostSubnet"   // it has one that can't be used
)

// complaint is an error that people have to mend, and that they have been told of.
type complaint struct{ error }

func (c complaint) Unwrap() error { return c.error }

// warn puts an error where people look for it, and returns it as a complaint.
func (c *Controller) warn(about runtime.Object, reason string, err error) error {
	c.Events.Event(about, corev1.EventTypeWarning, reason, oneLine(err))
	return complaint{err}
}
