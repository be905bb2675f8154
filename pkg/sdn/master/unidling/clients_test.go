package unidling

import (
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery/cached/memory"
	discoveryfake "k8s.io/client-go/discovery/fake"
	k8stesting "k8s.io/client-go/testing"
)

// Unknown kinds in annotations of users make the controller read the API server's kinds at most once in an interval, which finds CRDs that were created later.
func TestKinds_unknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &discoveryfake.FakeDiscovery{Fake: &k8stesting.Fake{}}
		api.Resources = []*metav1.APIResourceList{{GroupVersion: "apps/v1", APIResources: []metav1.APIResource{{Name: "deployments", Kind: "Deployment", Namespaced: true}}}}
		k := newKinds(memory.NewMemCacheClient(api))
		rollout := schema.GroupKind{Group: "argoproj.io", Kind: "Rollout"}
		find := func(kind schema.GroupKind, want string) {
			t.Helper()
			mapping, err := k.RESTMapping(kind)
			if want == "" {
				if !meta.IsNoMatchError(err) {
					t.Errorf("%s: got %v, error %v, want none", kind, mapping, err)
				}
				return
			}
			if err != nil || mapping.Resource.Resource != want {
				t.Errorf("%s: got %v, error %v, want %s", kind, mapping, err, want)
			}
		}
		find(schema.GroupKind{Group: "apps", Kind: "Deployment"}, "deployments")
		find(rollout, "")
		reads := len(api.Actions())
		for range 100 {
			find(rollout, "")
		}
		if got := len(api.Actions()); got != reads {
			t.Errorf("got %d requests for an unknown kind, want none", got-reads)
		}
		api.Resources = append(api.Resources, &metav1.APIResourceList{
			GroupVersion: "argoproj.io/v1", APIResources: []metav1.APIResource{{Name: "rollouts", Kind: "Rollout", Namespaced: true}},
		})
		find(rollout, "")
		time.Sleep(discoveryInterval) //nolint:forbidigo // of the bubble
		find(rollout, "rollouts")
	})
}
