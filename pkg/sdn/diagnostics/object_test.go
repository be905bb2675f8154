package diagnostics

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestParseObject(t *testing.T) {
	for text, want := range map[string]Object{
		"pod/default/web":             {KindPod, "default", "web"},
		"namespace/default":           {KindNamespace, "", "default"},
		"service/default/web":         {KindService, "default", "web"},
		"networkpolicy/a/b.c":         {KindNetworkPolicy, "a", "b.c"},
		"clusternetworkpolicy/x":      {KindClusterNetworkPolicy, "", "x"},
		"egressnetworkpolicy/a/b":     {KindEgressNetworkPolicy, "a", "b"},
		"node/worker-1.example.com":   {KindNode, "", "worker-1.example.com"},
		"pod/kube-system/dns-abc-123": {KindPod, "kube-system", "dns-abc-123"},
	} {
		got, err := ParseObject(text)
		if err != nil || got != want {
			t.Errorf("%s: got %+v, %v, want %+v", text, got, err, want)
		}
	}
}

func TestParseObject_errors(t *testing.T) {
	for text, want := range map[string]string{
		"":                  "pod/NAMESPACE/NAME, namespace/NAME, service/NAMESPACE/NAME",
		"web":               "the kind is unknown; write one of",
		"Pod/default/web":   "the kind is unknown; write one of",
		"pod/web":           "write pod/NAMESPACE/NAME: the name is invalid",
		"pod//web":          "write pod/NAMESPACE/NAME: the namespace is invalid",
		"pod/a/b/c":         "write pod/NAMESPACE/NAME: the name is invalid",
		"namespace/a/b":     "write namespace/NAME: the name is invalid",
		"namespace/a.b":     "write namespace/NAME: the name is invalid",
		"node/":             "write node/NAME: the name is invalid",
		"pod/default/../..": "the name is invalid",
	} {
		if got, err := ParseObject(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %+v, error %v, want an error with %q", text, got, err, want)
		}
	}
}

// FuzzParseObject: an object that is accepted has one text, which is safe in a path and in a log; an error is short whatever the input is.
func FuzzParseObject(f *testing.F) {
	for _, seed := range []string{"pod/default/web", "node/a", "namespace/x", "pod/a/b/c", "x", "/", "clusternetworkpolicy/a.b", "pod/\x00/\xff"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		o, err := ParseObject(text)
		if err != nil {
			if message := err.Error(); len(message) > 2000 || !utf8.ValidString(message) || strings.ContainsAny(message, "\n\x00") {
				t.Errorf("%q: got the error %q, want a line", text, message)
			}
			return
		}
		if o.String() != text {
			t.Errorf("%q: got %q", text, o)
		}
		if again, err := ParseObject(o.String()); err != nil || again != o {
			t.Errorf("%q: got %+v, %v the second time", text, again, err)
		}
		if strings.ContainsAny(text, " ?#%&\\\n\"'") || strings.Contains(text, "..") {
			t.Errorf("%q was accepted", text)
		}
	})
}

func TestTraceObject_String(t *testing.T) {
	for want, o := range map[string]TraceObject{"pod/a/b": {Object: "pod/a/b"}, "networkpolicy/a/b (ingress 0)": {Object: "networkpolicy/a/b", Rule: "ingress 0"}} {
		if got := o.String(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
