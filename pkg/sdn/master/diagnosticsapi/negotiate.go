package diagnosticsapi

import (
	"cmp"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const contentTypeJSON = "application/json"

// representation is a form of an answer: JSON, or JSON of another kind that the parameter "as" of the media type asks for.
type representation struct {
	as, group, version string // as in the parameters as, g and v; empty: the object itself
}

// contentType is the media type of the answer.
func (r representation) contentType() string {
	if r.as == "" {
		return contentTypeJSON
	}
	return contentTypeJSON + ";g=" + r.group + ";v=" + r.version + ";as=" + r.as
}

// clause is an element of an Accept header.
type clause struct {
	media   string
	params  map[string]string
	quality float64
}

// maxClauses is the largest number of elements of Accept headers that are read: kubectl sends three.
const maxClauses = 32

// clausesOf returns the elements of the Accept headers, the preferred first. Those that are not media types are ignored, as other API servers do.
func clausesOf(header http.Header) (clauses []clause) {
	for element := range strings.SplitSeq(strings.Join(header.Values("Accept"), ","), ",") {
		media, params, err := mime.ParseMediaType(element)
		if err != nil {
			continue
		}
		c := clause{media, params, 1}
		if q, ok := params["q"]; ok {
			if c.quality, err = strconv.ParseFloat(q, 64); err != nil || !(c.quality >= 0 && c.quality <= 1) {
				continue
			}
		}
		if clauses = append(clauses, c); len(clauses) == maxClauses {
			break
		}
	}
	slices.SortStableFunc(clauses, func(a, b clause) int { return cmp.Compare(b.quality, a.quality) })
	return clauses
}

// negotiate returns the preferred of the offered representations. JSON is always offered, and chosen if the client does not state what it accepts.
func negotiate(header http.Header, offered ...representation) (representation, error) {
	if len(header.Values("Accept")) == 0 {
		return representation{}, nil
	}
	offered = append(offered, representation{})
	for _, c := range clausesOf(header) {
		if c.quality == 0 || c.media != contentTypeJSON && c.media != "application/*" && c.media != "*/*" {
			continue
		}
		want := representation{c.params["as"], c.params["g"], c.params["v"]}
		if want.as == "" {
			want = representation{}
		}
		if slices.Contains(offered, want) {
			return want, nil
		}
	}
	types := make([]string, 0, len(offered))
	for _, o := range offered {
		types = append(types, o.contentType())
	}
	return representation{}, &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotAcceptable, Reason: metav1.StatusReasonNotAcceptable,
		Message: "only the following media types are accepted: " + strings.Join(types, ", "),
	}}
}
