package endpoints

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	memoryServices  = 10_000
	memoryEndpoints = 10 // of each Service
)

// largeSlice returns the slice of a Service as a decoder of the API's messages does: no two fields share memory.
func largeSlice(service int) *discoveryv1.EndpointSlice {
	name := fmt.Sprintf("service-%05d", service)
	s := apiSlice(name + "-x7k2p")
	s.Namespace, s.UID = fmt.Sprintf("namespace-%03d", service%500), types.UID(fmt.Sprintf("8b7f2f1e-54a9-4a3c-9f0e-%012d", service))
	s.ResourceVersion = fmt.Sprint(1_000_000 + service)
	s.Labels = map[string]string{discoveryv1.LabelServiceName: strings.Clone(name)}
	for i := range memoryEndpoints {
		n := service*memoryEndpoints + i
		text := fmt.Sprintf("10.%d.%d.%d ready serving node=worker-%d.example.com zone=zone-%d", 1+n>>16, n>>8&0xff, n&0xff, n%200, n%3)
		s.Endpoints = append(s.Endpoints, endpoint(text))
	}
	return s
}

// heapOf returns the bytes that the results of a function retain.
func heapOf(n int, of func(i int) any) (bytes uint64) {
	all := make([]any, n)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range all {
		all[i] = of(i)
	}
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(all)
	if after.HeapAlloc < before.HeapAlloc {
		return 0
	}
	return after.HeapAlloc - before.HeapAlloc
}

func TestMemoryOfSlices(t *testing.T) {
	const bound = 72 // bytes for each endpoint, including its share of the slice; the API objects have about ten times as many
	compact := heapOf(memoryServices, func(i int) any { return NewSlice(largeSlice(i), serviceNetwork()) })
	full := heapOf(memoryServices/10, func(i int) any { return largeSlice(i) }) * 10
	perEndpoint := float64(compact) / (memoryServices * memoryEndpoints)
	t.Logf("%d slices of %d endpoints: %d bytes, %.1f for each endpoint; as API objects %d, %.1f", memoryServices, memoryEndpoints, compact, perEndpoint, full,
		float64(full)/(memoryServices*memoryEndpoints))
	if perEndpoint > bound {
		t.Errorf("got %.1f bytes for each endpoint, want at most %d", perEndpoint, bound)
	}
}

func TestMemoryOfServices(t *testing.T) {
	const bound = 640 // bytes for each Service
	compact := heapOf(memoryServices, func(i int) any {
		return NewService(apiService(func(s *corev1.Service) {
			s.Namespace, s.Name = fmt.Sprintf("namespace-%03d", i%500), fmt.Sprintf("service-%05d", i)
			s.UID, s.ResourceVersion = types.UID(fmt.Sprintf("8b7f2f1e-54a9-4a3c-9f0e-%012d", i)), fmt.Sprint(1_000_000+i)
		}))
	})
	perService := float64(compact) / memoryServices
	t.Logf("%d Services: %d bytes, %.1f for each", memoryServices, compact, perService)
	if perService > bound {
		t.Errorf("got %.1f bytes for each Service, want at most %d", perService, bound)
	}
}

func BenchmarkNewSlice(b *testing.B) {
	s := largeSlice(1)
	for b.Loop() {
		NewSlice(s, serviceNetwork())
	}
}

func BenchmarkSelect(b *testing.B) {
	for _, n := range []int{10, 300, 5000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := apiSlice("web-1")
			for i := range n {
				s.Endpoints = append(s.Endpoints, endpoint(fmt.Sprintf("10.128.%d.%d ready serving node=worker-%d zone=a", i>>8, i&0xff, i%200)))
			}
			of := []*Slice{NewSlice(s, serviceNetwork())}
			svc := NewService(apiService(nil))
			for b.Loop() {
				Select(svc, of, Node{Name: "worker-1", Zone: "a"})
			}
		})
	}
}
