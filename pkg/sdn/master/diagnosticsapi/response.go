package diagnosticsapi

import (
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
)

// writeJSON writes the object. Its types can be marshaled.
func writeJSON(w http.ResponseWriter, form representation, code int, object any) {
	w.Header().Set("Content-Type", form.contentType())
	w.Header().Set("Cache-Control", "no-cache, private")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(object) // fails if the client has disconnected
}

// writeError writes the error as a Status, as all API servers do: clients print its message.
func writeError(w http.ResponseWriter, err error) {
	var known apierrors.APIStatus
	if !errors.As(err, &known) {
		known = apierrors.NewInternalError(err)
	}
	status := known.Status()
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	details := metav1.StatusDetails{}
	if status.Details != nil {
		details = *status.Details
	}
	if details.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(details.RetryAfterSeconds)))
	}
	if details.Group == "" { // by which kubectl distinguishes errors of this server from those of the API server that does not reach it
		details.Group = diagnostics.Group
	}
	status.Details = &details
	if status.Code == http.StatusUnauthorized {
		w.Header().Set("Connection", "close") // the server limits connections before the TLS handshake
	}
	writeJSON(w, representation{}, int(status.Code), status)
}

// writeArray writes JSON that consists of the prefix, an array and the suffix, without all of it in memory.
func writeArray(w http.ResponseWriter, form representation, prefix any, name string, n int, element func(int) any) {
	head, err := json.Marshal(prefix)
	if err != nil {
		writeError(w, err)
		return
	}
	w.Header().Set("Content-Type", form.contentType())
	w.Header().Set("Cache-Control", "no-cache, private")
	_, _ = w.Write(append(head[:len(head)-1], `,"`+name+`":[`...))
	for i := range n {
		if i > 0 {
			_, _ = w.Write([]byte{','})
		}
		content, err := json.Marshal(element(i))
		if err != nil {
			panic(http.ErrAbortHandler) // the client gets an incomplete answer, which it reports
		}
		if _, err := w.Write(content); err != nil {
			return
		}
	}
	_, _ = w.Write([]byte("]}\n"))
}

// resourceOf is the resource in errors.
func resourceOf(name string) schema.GroupResource {
	return schema.GroupResource{Group: diagnostics.Group, Resource: name}
}

// errMethodNotAllowed is the error of a request that is not a read of a path without objects.
func errMethodNotAllowed(r *http.Request) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusMethodNotAllowed, Reason: metav1.StatusReasonMethodNotAllowed,
		Message: "method " + printable(r.Method, maxName) + " is not allowed; only GET is",
	}}
}

// isRead reports whether the method only reads.
func isRead(r *http.Request) bool {
	return r.Method == http.MethodGet || r.Method == http.MethodHead
}
