package nodestatus

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestRefusal(t *testing.T) {
	forbidden := fmt.Errorf("write: %w", apierrors.NewForbidden(schema.GroupResource{Resource: "events"}, "", nil))
	unknown := apierrors.NewUnauthorized("the token has expired")
	for name, tc := range map[string]struct {
		answers []error
		refused bool
	}{
		"none":                        {nil, false},
		"accepted":                    {[]error{nil}, false},
		"forbidden":                   {[]error{forbidden}, true},
		"unauthorized":                {[]error{unknown}, true},
		"accepted again":              {[]error{forbidden, nil}, false},
		"a conflict is no refusal":    {[]error{apierrors.NewConflict(schema.GroupResource{}, "", nil)}, false},
		"a failure changes nothing":   {[]error{forbidden, apierrors.NewServiceUnavailable("")}, true},
		"no connection is no refusal": {[]error{errors.New("connection refused")}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &refusal{}
				for _, err := range tc.answers {
					r.note(err)
				}
				if got := r.get(refusedEventTime); (got != nil) != tc.refused {
					t.Errorf("got %v, want a refusal: %t", got, tc.refused)
				}
				<-time.After(refusedEventTime + time.Second)
				if got := r.get(refusedEventTime); got != nil {
					t.Errorf("got %v after %s", got, refusedEventTime)
				}
			})
		})
	}
}

// A tenant's quota, or the end of its namespace, may refuse Events about pods.
func TestRefusal_eventsAboutPods(t *testing.T) {
	s := &refusalSink{refused: &refusal{}}
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "events"}, "", nil)
	for _, namespace := range []string{"tenant", "default"} {
		s.note(&corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}, InvolvedObject: corev1.ObjectReference{Kind: "Pod"}}, forbidden)
	}
	if err := s.refused.get(0); err != nil {
		t.Errorf("got %v, want nil", err)
	}
}
