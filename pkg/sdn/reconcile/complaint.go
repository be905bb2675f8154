package reconcile

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
)

// What people must mend is tried again when something of it changes, and is said again at this pace: Events are gone after
// an hour, and the recorder lets one in five minutes pass for an object.
const complaintInterval = 5 * time.Minute

// Complaint is an error that people have to mend, and that they have been told of. Joined with other errors it speaks for all:
// whoever serves a key returns what goes away by itself alone.
type Complaint struct{ error }

func (c Complaint) Unwrap() error { return c.error }

// Complain puts an error where people look for it, in a warning about the object, and returns it as a Complaint.
func Complain(events record.EventRecorder, about runtime.Object, reason string, err error) error {
	events.Event(about, corev1.EventTypeWarning, reason, OneLine(err))
	return Complaint{err}
}

// OneLine joins the lines of an error, for messages that are shown in tables.
func OneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
