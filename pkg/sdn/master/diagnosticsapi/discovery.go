package diagnosticsapi

import (
	"net/http"
	"strings"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
)

const (
	groupsPath  = "/apis"
	groupPath   = groupsPath + "/" + diagnostics.Group
	versionPath = groupPath + "/" + diagnostics.Version

	statuses      = "nodestatuses"
	flows         = "nodeflows"
	traffic       = "nodetraffics"
	traces        = "traces"
	probes        = "probes"
	verifications = "verifications"
	captures      = "captures"
)

// aggregatedDiscovery is the form in which kube-aggregator reads all groups at once.
func aggregatedDiscovery() representation {
	return representation{as: "APIGroupDiscoveryList", group: apidiscoveryv2.GroupName, version: "v2"}
}

// groupVersion is that of all kinds of this API.
func groupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: diagnostics.Group, Version: diagnostics.Version}
}

// resources are those that the API serves.
func resources() []metav1.APIResource {
	return []metav1.APIResource{
		{Name: flows, SingularName: "nodeflows", Kind: "NodeFlows", Verbs: metav1.Verbs{"get"}, ShortNames: []string{"nflows"}},
		{Name: statuses, SingularName: "nodestatus", Kind: "NodeStatus", Verbs: metav1.Verbs{"get", "list"}, ShortNames: []string{"nstat"}},
		{Name: traffic, SingularName: "nodetraffic", Kind: "NodeTraffic", Verbs: metav1.Verbs{"get", "list"}},
		{Name: probes, SingularName: "probe", Kind: "Probe", Namespaced: true, Verbs: metav1.Verbs{"create"}},
		{Name: traces, SingularName: "trace", Kind: "Trace", Namespaced: true, Verbs: metav1.Verbs{"create"}},
		{Name: verifications, SingularName: "verification", Kind: "Verification", Namespaced: true, Verbs: metav1.Verbs{"create"}}, // and at the cluster scope
		// Of a pod by its name. Captures themselves do not exist.
		{Name: captures + "/" + diagnostics.CaptureSubresource, SingularName: "capture", Kind: "Capture", Namespaced: true, Verbs: metav1.Verbs{"create"}},
	}
}

// discovery returns the documents of discovery and of OpenAPI by path.
func discovery() map[string]any {
	version := metav1.GroupVersionForDiscovery{GroupVersion: groupVersion().String(), Version: diagnostics.Version}
	group := metav1.APIGroup{Name: diagnostics.Group, Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version}
	list := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}, Groups: []metav1.APIGroup{group}}
	group.TypeMeta = metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}
	info := map[string]string{"title": "ovsdn diagnostics", "version": diagnostics.Version}
	return map[string]any{
		groupsPath: list,
		groupPath:  group,
		versionPath: metav1.APIResourceList{
			TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: version.GroupVersion, APIResources: resources(),
		},
		// Without paths: kube-aggregator logs an error for an API server without OpenAPI v2, and requests it again and again.
		"/openapi/v2": map[string]any{"swagger": "2.0", "info": info, "paths": struct{}{}},
		"/openapi/v3": map[string]any{"paths": struct{}{}},
	}
}

// aggregated is the document of aggregatedDiscovery.
func aggregated() apidiscoveryv2.APIGroupDiscoveryList {
	version := apidiscoveryv2.APIVersionDiscovery{Version: diagnostics.Version, Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent}
	for _, r := range resources() {
		scope := apidiscoveryv2.ScopeCluster
		if r.Namespaced {
			scope = apidiscoveryv2.ScopeNamespace
		}
		kind := &metav1.GroupVersionKind{Group: diagnostics.Group, Version: diagnostics.Version, Kind: r.Kind}
		listed := apidiscoveryv2.APIResourceDiscovery{
			Resource: r.Name, SingularResource: r.SingularName, Scope: scope, Verbs: r.Verbs, ShortNames: r.ShortNames, ResponseKind: kind,
		}
		if resource, subresource, ok := strings.Cut(r.Name, "/"); ok {
			listed.Resource, listed.Verbs, listed.ResponseKind = resource, nil, &metav1.GroupVersionKind{} // as the API server lists a resource that only has subresources
			listed.Subresources = []apidiscoveryv2.APISubresourceDiscovery{{Subresource: subresource, Verbs: r.Verbs, ResponseKind: kind}}
		}
		version.Resources = append(version.Resources, listed)
	}
	return apidiscoveryv2.APIGroupDiscoveryList{
		TypeMeta: metav1.TypeMeta{Kind: "APIGroupDiscoveryList", APIVersion: apidiscoveryv2.SchemeGroupVersion.String()},
		Items: []apidiscoveryv2.APIGroupDiscovery{{
			ObjectMeta: metav1.ObjectMeta{Name: diagnostics.Group}, Versions: []apidiscoveryv2.APIVersionDiscovery{version},
		}},
	}
}

// serveDiscovery answers requests for documents, which are the same for all users. It reports whether the path is one of them.
func (s *Server) serveDiscovery(w http.ResponseWriter, r *http.Request) bool {
	document, ok := s.documents[r.URL.Path]
	if !ok {
		return false
	}
	if !isRead(r) {
		writeError(w, errMethodNotAllowed(r))
		return true
	}
	var offered []representation
	if r.URL.Path == groupsPath {
		offered = []representation{aggregatedDiscovery()}
	}
	switch form, err := negotiate(r.Header, offered...); {
	case err != nil:
		writeError(w, err)
	case form == aggregatedDiscovery():
		writeJSON(w, form, http.StatusOK, aggregated())
	default:
		writeJSON(w, form, http.StatusOK, document)
	}
	return true
}
