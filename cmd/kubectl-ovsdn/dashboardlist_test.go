package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"
)

// annotated returns JSON of an object, with an annotation that makes it size bytes long.
func annotated(name string, size int) string {
	const form = `{"metadata":{"annotations":{"a":"%s"},"name":"%s"}}`
	return fmt.Sprintf(form, strings.Repeat("a", size-len(fmt.Sprintf(form, "", name))), name)
}

// The size of a list is not limited, that of an object is.
func TestDecodeNames(t *testing.T) {
	const limit = 8 << 10
	large := annotated("large", limit-1) // a comma precedes it
	many, manyNames := make([]string, 200), make([]name, 200)
	for i := range many {
		many[i], manyNames[i] = large, name{Name: "large"}
	}
	for title, tc := range map[string]struct {
		list string
		want names
		err  string
	}{
		"many large objects": {`{"kind":"List","metadata":{"continue":"next","remainingItemCount":3},"items":[` + strings.Join(many, ",") + `]}`, names{manyNames, "next", 3}, ""},
		"metadata at last":   {`{"items":[` + annotated("a", 100) + "," + large + `],"metadata":{"continue":"next"}}` + "\n", names{[]name{{Name: "a"}, {Name: "large"}}, "next", 0}, ""},
		"no objects":         {emptyList, names{Items: []name{}}, ""},
		"null":               {`{"metadata":{},"items":null}`, names{Items: []name{}}, ""},
		"too large an object": {`{"metadata":{},"items":[` + annotated("a", 100) + "," + annotated("b", limit+1) + `]}`, names{[]name{{Name: "a"}}, "", 0},
			"an object of the list is larger than 8 KiB"},
		"too large a field": {`{"x":"` + strings.Repeat("a", 2*limit) + `"}`, names{Items: []name{}}, "larger than 8 KiB"},
		"an array":          {`[]`, names{Items: []name{}}, "not a list"},
		"a string":          {`{"items":"a"}`, names{Items: []name{}}, "not a list"},
		"a part of a list":  {`{"items":[` + annotated("a", 100), names{[]name{{Name: "a"}}, "", 0}, "unexpected EOF"},
		"nothing":           {"", names{Items: []name{}}, "unexpected EOF"},
	} {
		for reader, body := range map[string]io.Reader{
			"whole": strings.NewReader(tc.list), "halves": iotest.HalfReader(strings.NewReader(tc.list)), "with EOF": iotest.DataErrReader(strings.NewReader(tc.list)),
		} {
			got := names{Items: []name{}}
			err := decodeNames(&got, body, limit, func(o *objectName) name { return name{Name: o.Metadata.Name} })
			if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%s, %s: got the error %v, want %q", title, reader, err, tc.err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s, %s (-want +got):\n%s", title, reader, diff)
			}
		}
	}
}

// The page reports the connection that broke, and no part of the list.
func TestDashboard_brokenList(t *testing.T) {
	d := newTestDashboard(t, &apiTransport{answer: func(*http.Request) (*http.Response, error) {
		answer := jsonResponse(http.StatusOK, "")
		answer.Body = io.NopCloser(io.MultiReader(strings.NewReader(`{"items":[`+annotated("a", 1000)+","), iotest.ErrReader(errors.New("connection reset"))))
		return answer, nil
	}})
	w := d.ask("GET", "/api/namespaces", "", nil)
	var got struct{ Message string }
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != http.StatusBadGateway || got.Message != "decode the answer of the API server: connection reset" {
		t.Errorf("got status %d, %s (%v)", w.Code, w.Body, err)
	}
}
