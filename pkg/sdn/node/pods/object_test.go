package pods

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apitypes "k8s.io/apimachinery/pkg/types"
)

// lateCache is a cache beside an API server, and counts how often that is asked.
type lateCache struct {
	cached, now *corev1.Pod
	asked       int
}

func (c *lateCache) Cached(string, string) *corev1.Pod { return c.cached }

func (c *lateCache) Local() []*corev1.Pod { return nil }

func (c *lateCache) Get(context.Context, string, string) (*corev1.Pod, error) {
	c.asked++
	return c.now, nil
}

// A StatefulSet's pod comes again under its name: kubelet may know before our watch does.
func TestObjectAsksTheAPIWhenTheCacheIsLate(t *testing.T) {
	pod := func(uid string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "db-0", UID: apitypes.UID(uid)}}
	}
	for name, tc := range map[string]struct {
		cached *corev1.Pod
		asked  int
	}{
		"cache is right":       {pod("new"), 0},
		"cache knows no pod":   {nil, 1},
		"cache has its former": {pod("old"), 1},
	} {
		t.Run(name, func(t *testing.T) {
			api := &lateCache{cached: tc.cached, now: pod("new")}
			m := &Manager{pods: api}
			got, err := m.object(t.Context(), kubeArgs{namespace: "default", name: "db-0", uid: "new"})
			if err != nil {
				t.Fatal(err)
			}
			if got.UID != "new" || api.asked != tc.asked {
				t.Errorf("got UID %s, and asked the API %d times, want %d", got.UID, api.asked, tc.asked)
			}
		})
	}
}
