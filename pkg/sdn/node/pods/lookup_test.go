package pods

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apitypes "k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/cniargs"
)

// staleCache is an informer cache that differs from the API server. It counts the calls of the API server.
type staleCache struct {
	cached, current *corev1.Pod
	gets            int
}

func (c *staleCache) Cached(string, string) *corev1.Pod { return c.cached }

func (c *staleCache) Local() []*corev1.Pod { return nil }

func (c *staleCache) Get(context.Context, string, string) (*corev1.Pod, error) {
	c.gets++
	return c.current, nil
}

// A StatefulSet's pod is re-created under its name. kubelet can see the new pod before the agent's cache does.
func TestLookUpPod_staleCache(t *testing.T) {
	pod := func(uid string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "db-0", UID: apitypes.UID(uid)}}
	}
	for name, tc := range map[string]struct {
		cached *corev1.Pod
		gets   int
	}{
		"cache is current":       {pod("new"), 0},
		"cache has no pod":       {nil, 1},
		"cache has previous pod": {pod("old"), 1},
	} {
		t.Run(name, func(t *testing.T) {
			api := &staleCache{cached: tc.cached, current: pod("new")}
			m := &Manager{pods: api}
			got, err := m.lookUpPod(t.Context(), cniargs.Args{Namespace: "default", Name: "db-0", UID: "new"})
			if err != nil {
				t.Fatal(err)
			}
			if got.UID != "new" || api.gets != tc.gets {
				t.Errorf("got UID %s after %d calls of the API, want new after %d", got.UID, api.gets, tc.gets)
			}
		})
	}
}
