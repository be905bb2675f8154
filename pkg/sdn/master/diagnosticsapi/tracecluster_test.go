package diagnosticsapi

import (
	"context"
	"fmt"
	"strconv"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
)

// The EndpointSlices of a service are read in small pages, and not all of them if there are many.
func TestTraceCluster_slicesArePaged(t *testing.T) {
	for name, tc := range map[string]struct {
		slices, endpoints                     int // of the service, and of each slice
		wantEndpoints, wantPages, wantsSlices int
		truncated                             bool
	}{
		"few":               {10, 100, 1000, 3, 10, false},
		"many endpoints":    {10, 300, 1000, 1, 4, true},
		"many empty slices": {150, 0, 0, 26, 101, true},
	} {
		f := newTraceFixture(t)
		pages := 0
		f.kube.PrependReactor("list", "endpointslices", func(action clienttesting.Action) (bool, runtime.Object, error) {
			options := action.(clienttesting.ListActionImpl).GetListOptions()
			begin, _ := strconv.Atoi(options.Continue)
			if pages++; options.Limit < 1 || options.Limit > 10 || begin < 0 {
				return true, nil, fmt.Errorf("got limit %d and continue %q", options.Limit, options.Continue)
			}
			meta := metav1.ObjectMeta{Labels: map[string]string{discoveryv1.LabelServiceName: "api"}}
			list := &discoveryv1.EndpointSliceList{}
			for i := begin; i < min(begin+int(options.Limit), tc.slices); i++ {
				list.Items = append(list.Items, discoveryv1.EndpointSlice{ObjectMeta: meta, Endpoints: make([]discoveryv1.Endpoint, tc.endpoints)})
			}
			if end := begin + len(list.Items); end < tc.slices {
				list.Continue = strconv.Itoa(end)
			}
			return true, list, nil
		})
		cluster := &traceCluster{server: f.Server}
		endpoints, slices := 0, 0
		truncated, err := cluster.Slices(t.Context(), "a", "api", func(slice *discoveryv1.EndpointSlice) {
			slices++
			endpoints += len(slice.Endpoints)
		})
		if err != nil || truncated != tc.truncated || endpoints != tc.wantEndpoints || pages != tc.wantPages || slices != tc.wantsSlices {
			t.Errorf("%s: got %d endpoints of %d slices in %d pages, truncated %v, error %v, want %+v", name, endpoints, slices, pages, truncated, err, tc)
		}
		f.slices <- struct{}{} // another trace reads
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := cluster.Slices(ctx, "a", "api", func(*discoveryv1.EndpointSlice) { t.Errorf("%s: a second trace reads", name) }); err == nil {
			t.Errorf("%s: a second trace: got no error", name)
		}
	}
}
