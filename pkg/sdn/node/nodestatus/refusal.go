package nodestatus

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
)

// refusedEventTime is how long a refused Event counts. client-go does not repeat it, so there may be no later success that clears it.
const refusedEventTime = 10 * time.Minute

// refusal stores the last answer to one kind of write if the API server refused it (RBAC, admission, an invalid token). A failure of the server
// or of the connection is no refusal: see package apihealth.
type refusal struct {
	mu  sync.Mutex
	err error // nil: the last answer was no refusal
	at  time.Time
}

func (r *refusal) note(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case err == nil:
		r.err = nil
	case apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err):
		r.err, r.at = err, time.Now()
	}
}

// get returns the refusal, nil if there is none or if it is older than the age. 0 is any age.
func (r *refusal) get(age time.Duration) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if age > 0 && time.Since(r.at) > age {
		return nil
	}
	return r.err
}

// refusalSink records refusals of Events about the Node, not of those about pods: a tenant's quota may refuse these.
type refusalSink struct {
	record.EventSink

	refused *refusal
}

func (s *refusalSink) note(event *corev1.Event, err error) {
	if event.Namespace == metav1.NamespaceDefault && event.InvolvedObject.Kind == "Node" {
		s.refused.note(err)
	}
}

// Create implements record.EventSink.
func (s *refusalSink) Create(event *corev1.Event) (*corev1.Event, error) {
	written, err := s.EventSink.Create(event)
	s.note(event, err)
	return written, err
}

// Patch implements record.EventSink.
func (s *refusalSink) Patch(event *corev1.Event, data []byte) (*corev1.Event, error) {
	written, err := s.EventSink.Patch(event, data)
	s.note(event, err)
	return written, err
}
