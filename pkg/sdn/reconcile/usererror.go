package reconcile

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
)

// userErrorRetry is the interval at which a key with a UserError is reconciled again, which repeats its Event: the API server deletes Events
// after an hour, and the recorder's spam filter passes one in five minutes for each object.
const userErrorRetry = 5 * time.Minute

// UserError is an error that only a user can correct, and that an Event has reported. Joined errors with a UserError among them are retried
// as a UserError: a Func returns an error that needs a retry with backoff alone.
type UserError struct{ error }

func (e UserError) Unwrap() error { return e.error }

// ReportUserError sends the error as a Warning Event about the object, and returns it as a UserError.
func ReportUserError(events record.EventRecorder, about runtime.Object, reason string, err error) error {
	events.Event(about, corev1.EventTypeWarning, reason, OneLine(err))
	return UserError{err}
}

// OneLine joins the lines of an error, for messages that are displayed in tables.
func OneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// MaxMessage is the length of the longest message that Shorten returns unchanged, in bytes: less than that of an Event, 1,024.
const MaxMessage = 1000

// Shorten bounds the message of an Event or a condition.
func Shorten(message string) string { return ShortenBefore(message, "") }

// ShortenBefore bounds a message and appends its end, such as what to do, which is not shortened.
func ShortenBefore(message, end string) string {
	if len(message)+len(end) <= MaxMessage {
		return message + end
	}
	return strings.ToValidUTF8(message[:max(0, min(len(message), MaxMessage-len(end)))], "") + "…" + end
}

// FirstNames joins the first names for a message, with the number of the others.
func FirstNames(names []string, most int) string {
	if more := len(names) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), more)
	}
	return strings.Join(names, ", ")
}
