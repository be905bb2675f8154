package unidling

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	unidlingv1alpha1 "github.com/openshift/api/unidling/v1alpha1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/metadata"
	metadatafake "k8s.io/client-go/metadata/fake"
	scalefake "k8s.io/client-go/scale/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/test/await"
)

func TestMain(m *testing.M) { await.VerifyTestMain(m) }

// cluster is a fake API server with recorded Events, in a synctest bubble.
type cluster struct {
	t        *testing.T
	kube     *fake.Clientset
	metadata *metadatafake.FakeMetadataClient
	scales   *scalefake.FakeScaleClient
	paged    bool // lists of Services have one in each page

	mu       sync.Mutex
	replicas map[string]int32 // by "namespace/resource/name"
	failures map[string]error // of scaling, by the same key
	conflict bool             // the next patch fails
	version  string           // of new objects
	slow     chan struct{}    // closed: kind Slow has a resource
	events   []string         // since the last call of wantEvents
	numbers  int              // of Events
	logged   []string         // at -v=2
}

func newCluster(t *testing.T) *cluster {
	scheme := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c := &cluster{
		t: t, kube: fake.NewClientset(), metadata: metadatafake.NewSimpleMetadataClient(scheme), scales: &scalefake.FakeScaleClient{},
		replicas: map[string]int32{}, failures: map[string]error{}, version: "7", slow: make(chan struct{}),
	}
	c.scales.AddReactor("get", "*", func(action k8stesting.Action) (bool, runtime.Object, error) {
		get := action.(k8stesting.GetAction)
		return c.scale(action, get.GetName(), nil)
	})
	c.scales.AddReactor("update", "*", func(action k8stesting.Action) (bool, runtime.Object, error) {
		update := action.(k8stesting.UpdateAction).GetObject().(*autoscalingv1.Scale)
		return c.scale(action, update.Name, update)
	})
	c.metadata.PrependReactor("patch", "*", func(action k8stesting.Action) (bool, runtime.Object, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !strings.Contains(string(action.(k8stesting.PatchAction).GetPatch()), `"resourceVersion":"`+c.version+`"`) {
			t.Errorf("got patch %s, want one with the version that was read", action.(k8stesting.PatchAction).GetPatch())
		}
		if c.conflict {
			c.conflict = false
			return true, nil, apierrors.NewConflict(action.GetResource().GroupResource(), "", errors.New("changed"))
		}
		return false, nil, nil
	})
	return c
}

// scale is a request of a scale subresource; update is nil to read it.
func (c *cluster) scale(action k8stesting.Action, name string, update *autoscalingv1.Scale) (bool, runtime.Object, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := action.GetNamespace() + "/" + action.GetResource().Resource + "/" + name
	replicas, ok := c.replicas[key]
	if !ok {
		return true, nil, apierrors.NewNotFound(action.GetResource().GroupResource(), name)
	}
	if update == nil {
		return true, &autoscalingv1.Scale{
			ObjectMeta: metav1.ObjectMeta{Namespace: action.GetNamespace(), Name: name}, Spec: autoscalingv1.ScaleSpec{Replicas: replicas},
		}, nil
	}
	if err := c.failures[key]; err != nil {
		return true, nil, err
	}
	c.replicas[key] = update.Spec.Replicas
	return true, update, nil
}

func (c *cluster) fail(key string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failures[key] = err
}

// recorder records Events as "Type Reason namespace/name: message". Event is its only method in use.
type recorder struct {
	record.EventRecorder
	c *cluster
}

func (r recorder) Event(about runtime.Object, eventType, reason, message string) {
	o, ok := about.(*corev1.ObjectReference)
	if !ok || o.Kind != "Service" || o.UID == "" || o.APIVersion == "" {
		r.c.t.Errorf("got an Event on %+v, want one on a Service with its UID", about)
		return
	}
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	r.c.events = append(r.c.events, fmt.Sprintf("%s %s %s/%s: %s", eventType, reason, o.Namespace, o.Name, message))
}

// lead starts a controller, and returns the function that stops it.
func (c *cluster) lead() (stop func()) {
	c.t.Helper()
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{{Group: "apps", Version: "v1"}})
	for _, kind := range []string{"Deployment", "StatefulSet", "Slow"} {
		mapper.Add(schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: kind}, meta.RESTScopeNamespace)
	}
	clients := Clients{Kube: c.kube, Metadata: pagedMetadata{c.metadata, c}, Scales: c.scales, Mapper: slowMapper{mapper, c.slow}, Events: recorder{c: c}}
	controller, err := New(clients, NewInformer(c.kube))
	c.must(err)
	ctx, cancel := context.WithCancel(klog.NewContext(c.t.Context(), funcr.New(func(_, args string) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.logged = append(c.logged, args)
	}, funcr.Options{Verbosity: 2})))
	var running sync.WaitGroup
	running.Go(func() { controller.Run(ctx) })
	synctest.Wait() // for the watch: a fake client does not report what is created before it
	return func() {
		cancel()
		running.Wait()
	}
}

// pagedMetadata is a client whose lists have pages, which a fake client ignores.
type pagedMetadata struct {
	metadata.Interface
	c *cluster
}

func (m pagedMetadata) Resource(resource schema.GroupVersionResource) metadata.Getter {
	return pagedGetter{m.Interface.Resource(resource), m.c}
}

type pagedGetter struct {
	metadata.Getter
	c *cluster
}

func (g pagedGetter) List(ctx context.Context, options metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	list, err := g.Getter.List(ctx, options)
	if options.Limit != pageSize {
		g.c.t.Errorf("got a list with limit %d, want %d", options.Limit, pageSize)
	}
	if err != nil || !g.c.paged {
		return list, err
	}
	slices.SortFunc(list.Items, func(a, b metav1.PartialObjectMetadata) int { return strings.Compare(a.Name, b.Name) })
	page := len(options.Continue)
	if page+1 < len(list.Items) {
		list.Continue = options.Continue + "+"
	}
	list.Items = list.Items[page : page+1]
	return list, nil
}

// slowMapper waits for the channel before it returns the resource of kind Slow, as a client does whose rate limit is exceeded.
type slowMapper struct {
	Mapper
	slow <-chan struct{}
}

func (m slowMapper) RESTMapping(kind schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	if kind.Kind == "Slow" {
		<-m.slow
	}
	return m.Mapper.RESTMapping(kind, versions...)
}

func (c *cluster) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// idle creates or replaces an object with the annotations of a service that was idled now.
func (c *cluster) idle(resource, namespace, name, targets string) {
	c.t.Helper()
	gvr := corev1.SchemeGroupVersion.WithResource(resource)
	kind := map[string]string{"services": "Service", "endpoints": "Endpoints"}[resource]
	_ = c.metadata.Tracker().Delete(gvr, namespace, name)
	c.must(c.metadata.Tracker().Create(gvr, &metav1.PartialObjectMetadata{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: kind},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name), ResourceVersion: c.version, Annotations: map[string]string{
			"other":                                 "retained",
			unidlingv1alpha1.IdledAtAnnotation:      time.Now().UTC().Format(time.RFC3339),
			unidlingv1alpha1.UnidleTargetAnnotation: targets,
		}},
	}, namespace))
}

// ready creates an EndpointSlice of the service.
func (c *cluster) ready(namespace, service string, isReady bool) {
	c.t.Helper()
	_, err := c.kube.DiscoveryV1().EndpointSlices(namespace).Create(c.t.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprint(service, isReady), Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		Endpoints:  []discoveryv1.Endpoint{{Addresses: []string{"10.128.0.5"}, Conditions: discoveryv1.EndpointConditions{Ready: &isReady}}},
	}, metav1.CreateOptions{})
	c.must(err)
}

// packet creates the Event that an agent sends about a packet, after edit has changed it.
func (c *cluster) packet(namespace, service string, edit func(*corev1.Event)) {
	c.t.Helper()
	c.numbers++
	e := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprint("event", c.numbers)},
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: namespace, Name: service},
		Reason:         eventreason.NeedPods, Type: corev1.EventTypeNormal, Source: corev1.EventSource{Component: agent, Host: "node1"},
		FirstTimestamp: metav1.Now(), LastTimestamp: metav1.Now(),
	}
	if edit != nil {
		edit(e)
	}
	_, err := c.kube.CoreV1().Events(namespace).Create(c.t.Context(), e, metav1.CreateOptions{})
	c.must(err)
}

// settle waits until all goroutines are idle.
func (c *cluster) settle() {
	time.Sleep(time.Second) //nolint:forbidigo // of the bubble, so that informers have started and the queue is empty
	synctest.Wait()
}

// wantEvents compares the Events since its last call.
func (c *cluster) wantEvents(want ...string) {
	c.t.Helper()
	c.settle()
	c.mu.Lock()
	defer c.mu.Unlock()
	if diff := cmp.Diff(want, c.events); diff != "" {
		c.t.Errorf("Events (-want +got):\n%s", diff)
	}
	c.events = nil
}

// wantLog checks the number of log messages with a text.
func (c *cluster) wantLog(text string, want int) {
	c.t.Helper()
	c.settle()
	c.mu.Lock()
	defer c.mu.Unlock()
	got := 0
	for _, m := range c.logged {
		if strings.Contains(m, text) {
			got++
		}
	}
	if got != want {
		c.t.Errorf("got %d messages with %q, want %d: %q", got, text, want, c.logged)
	}
}

func (c *cluster) wantReplicas(want map[string]int32) {
	c.t.Helper()
	c.settle()
	c.mu.Lock()
	defer c.mu.Unlock()
	if diff := cmp.Diff(want, c.replicas); diff != "" {
		c.t.Errorf("replicas (-want +got):\n%s", diff)
	}
}

// wantTargets compares the names in the annotation of an object; none: it has neither annotation, and retains others.
func (c *cluster) wantTargets(resource, namespace, name string, want ...string) {
	c.t.Helper()
	c.settle()
	o, err := c.metadata.Resource(corev1.SchemeGroupVersion.WithResource(resource)).Namespace(namespace).Get(c.t.Context(), name, metav1.GetOptions{})
	c.must(err)
	var list []unidlingv1alpha1.RecordedScaleReference
	if value := o.Annotations[unidlingv1alpha1.UnidleTargetAnnotation]; value != "" {
		c.must(json.Unmarshal([]byte(value), &list))
	}
	var got []string
	for _, r := range list {
		got = append(got, r.Name)
	}
	_, isIdled := o.Annotations[unidlingv1alpha1.IdledAtAnnotation]
	if !slices.Equal(got, want) || isIdled != (len(want) > 0) || o.Annotations["other"] != "retained" {
		c.t.Errorf("%s %s: got annotations %v, want targets %q", resource, name, slices.Sorted(maps.Keys(o.Annotations)), want)
	}
}
