package diagnosticsapi

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"unicode"

	"github.com/ovsdn/ovsdn/test/fakeca"
)

// What clients and the front proxy send must not crash the controller, nor reach an agent or a terminal in a form that these do not expect.
func FuzzRequest(f *testing.F) {
	f.Add(acceptKubectl, "limit=500&continue=bm9kZTE&labelSelector=a%3Db&fieldSelector=metadata.name%3Dnode1", "X-Remote-Extra-Scopes", "x", "pod/ns/name", "/apis/diagnostics.ovsdn.io/v1alpha1/nodestatuses/node1")
	f.Add("*/*;q=0.1,application/json;q=.", "watch&limit=-1", "X-Remote-Extra-%zz", "", "\x1b[2J", "//")
	headers, err := parseRequestHeaders(configMap(fakeca.New(f, "ca").PEM()))
	if err != nil {
		f.Fatal(err)
	}
	all := nodes(3)
	f.Fuzz(func(t *testing.T, accept, rawQuery, name, value, object, path string) {
		if form, err := negotiate(http.Header{"Accept": {accept}}, table()); err == nil && form != table() && form != (representation{}) {
			t.Errorf("negotiated %v, which is not offered", form)
		}
		u := headers.userOf(http.Header{name: {value}, "X-Remote-User": {value}, "X-Remote-Group": {value, ""}})
		if u.name != value || u.uid != "" && name != "X-Remote-Uid" {
			t.Errorf("got user %+v", u)
		}
		if resource, node, ok := objectOf(path); ok && (strings.Contains(node, "/") || resource != statuses && resource != flows && resource != traffic) {
			t.Errorf("%q: got %s %q", path, resource, node)
		}
		if got, err := parseObject(url.Values{"object": {object}}); err == nil && (got != object || strings.ContainsFunc(got, unicode.IsControl)) {
			t.Errorf("%q: got object %q", object, got)
		}
		query, err := url.ParseQuery(rawQuery)
		if err != nil {
			return
		}
		isTrue(query, "watch")
		s, err := parseSelection(query)
		if err != nil {
			return
		}
		if page, meta := s.page(all); s.limit > 0 && (len(page) > s.limit || meta.Continue != "" && len(page) != s.limit) {
			t.Errorf("%q: got %d nodes, limit %d", rawQuery, len(page), s.limit)
		}
	})
}

// The answer of an agent is hostile input.
func FuzzFlowsAnswer(f *testing.F) {
	f.Add(`{"flows":[{"table":10,"match":"ip","owners":["a"],"state":"Installed"},{}],"truncated":true}`)
	f.Add(`{"flows":null,"flows":[{"match":"\u001b","desired":"\u001b[2J"}],"a":[[]]}`)
	f.Fuzz(func(t *testing.T, answer string) {
		a := &flowsAnswer{}
		if err := a.decode(strings.NewReader(answer)); err != nil {
			if text := explain("n", err); strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("got error %q", text)
			}
			return
		}
		for _, flow := range a.flows {
			for _, text := range append([]string{flow.Match, flow.Actions, flow.Desired, flow.TableName, flow.Cookie, string(flow.State)}, flow.Owners...) {
				if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
					t.Errorf("got %q, which is not printable", text)
				}
			}
		}
	})
}
