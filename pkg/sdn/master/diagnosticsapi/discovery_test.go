package diagnosticsapi

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The Accept headers of kubectl and of other clients.
const (
	acceptKubectl   = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"
	acceptTable     = "application/json;as=Table;v=v1;g=meta.k8s.io"
	acceptDiscovery = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"
)

func TestServer_discovery(t *testing.T) {
	f := newFixture(t, nodes(1), answering(""))
	gv := metav1.GroupVersionForDiscovery{GroupVersion: "diagnostics.ovsdn.io/v1alpha1", Version: "v1alpha1"}
	groups := decode[metav1.APIGroupList](t, f.get(t, "u", "/apis", "Accept", "application/json"), http.StatusOK)
	if len(groups.Groups) != 1 || groups.Kind != "APIGroupList" || groups.Groups[0].Name != "diagnostics.ovsdn.io" {
		t.Errorf("/apis: got %+v", groups)
	}
	group := decode[metav1.APIGroup](t, f.get(t, "u", "/apis/diagnostics.ovsdn.io"), http.StatusOK)
	if group.Kind != "APIGroup" || group.PreferredVersion != gv || len(group.Versions) != 1 || group.Versions[0] != gv {
		t.Errorf("group: got %+v", group)
	}
	list := decode[metav1.APIResourceList](t, f.get(t, "u", versionPath), http.StatusOK)
	want := metav1.APIResourceList{
		TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: gv.GroupVersion,
		APIResources: []metav1.APIResource{
			{Name: "nodeflows", SingularName: "nodeflows", Kind: "NodeFlows", Verbs: metav1.Verbs{"get"}, ShortNames: []string{"nflows"}},
			{Name: "nodestatuses", SingularName: "nodestatus", Kind: "NodeStatus", Verbs: metav1.Verbs{"get", "list"}, ShortNames: []string{"nstat"}},
			{Name: "nodetraffics", SingularName: "nodetraffic", Kind: "NodeTraffic", Verbs: metav1.Verbs{"get", "list"}},
			{Name: "probes", SingularName: "probe", Kind: "Probe", Namespaced: true, Verbs: metav1.Verbs{"create"}},
			{Name: "traces", SingularName: "trace", Kind: "Trace", Namespaced: true, Verbs: metav1.Verbs{"create"}},
			{Name: "verifications", SingularName: "verification", Kind: "Verification", Namespaced: true, Verbs: metav1.Verbs{"create"}},
			{Name: "captures/attach", SingularName: "capture", Kind: "Capture", Namespaced: true, Verbs: metav1.Verbs{"create"}},
		},
	}
	if diff := cmp.Diff(want, list); diff != "" {
		t.Errorf("resources (-want +got):\n%s", diff)
	}
	r := f.get(t, "u", "/apis", "Accept", acceptDiscovery)
	if got := r.header.Get("Content-Type"); got != "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList" {
		t.Errorf("got Content-Type %q", got)
	}
	all := decode[apidiscoveryv2.APIGroupDiscoveryList](t, r, http.StatusOK)
	if len(all.Items) != 1 || all.Items[0].Name != "diagnostics.ovsdn.io" || len(all.Items[0].Versions[0].Resources) != 7 || all.Items[0].Versions[0].Resources[3].Scope != apidiscoveryv2.ScopeNamespace ||
		all.Items[0].Versions[0].Resources[1].ResponseKind.Kind != "NodeStatus" || all.Items[0].Versions[0].Resources[1].Scope != apidiscoveryv2.ScopeCluster {
		t.Errorf("aggregated: got %+v", all)
	}
	captured := all.Items[0].Versions[0].Resources[6]
	if captured.Resource != "captures" || len(captured.Verbs) != 0 || len(captured.Subresources) != 1 || captured.Subresources[0].Subresource != "attach" || captured.Subresources[0].ResponseKind.Kind != "Capture" {
		t.Errorf("aggregated captures: got %+v", captured)
	}
	for _, path := range []string{"/openapi/v2", "/openapi/v3"} {
		if o := decode[map[string]any](t, f.get(t, "u", path), http.StatusOK); o["paths"] == nil {
			t.Errorf("%s: got %v, want paths", path, o)
		}
	}
}

func TestNegotiate(t *testing.T) {
	for accept, want := range map[string]string{
		"application/json":                      "application/json",
		"*/*":                                   "application/json",
		"application/*":                         "application/json",
		"application/json;charset=utf-8":        "application/json",
		acceptKubectl:                           "table",
		acceptTable:                             "table",
		"application/json;q=0.5," + acceptTable: "table",
		"application/json," + acceptTable + ";q=0.9":                                  "application/json",
		"application/vnd.kubernetes.protobuf,application/json":                        "application/json",
		"application/vnd.kubernetes.protobuf;q=0.1,text/html,application/json;q=0.01": "application/json",
		"text/html, */*;q=0.1": "application/json",
		"application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json": "application/json",
		"application/json;as=Table;v=v1beta1;g=meta.k8s.io":                                 "",
		"application/vnd.kubernetes.protobuf":                                               "",
		"application/json;q=0":                                                              "",
		"application/json;q=2":                                                              "",
		"application/json;q=NaN":                                                            "",
		"application/yaml":                                                                  "",
		"":                                                                                  "",
		"a;b;c,;":                                                                           "",
	} {
		form, err := negotiate(http.Header{"Accept": {accept}}, table())
		got := form.contentType()
		if form == table() {
			got = "table"
		}
		if err != nil {
			got = ""
		}
		if got != want {
			t.Errorf("%q: got %q, %v, want %q", accept, got, err, want)
		}
	}
	if form, err := negotiate(http.Header{}, table()); err != nil || form != (representation{}) {
		t.Errorf("without a header: got %v, %v, want JSON", form, err)
	}
	f := newFixture(t, nodes(1), answering(""))
	r := f.get(t, "admin", statusesPath, "Accept", "application/yaml")
	if status := decode[metav1.Status](t, r, http.StatusNotAcceptable); !strings.Contains(status.Message, "application/json, ") && !strings.HasSuffix(status.Message, "application/json") {
		t.Errorf("got message %q, want what is offered", status.Message)
	}
}
