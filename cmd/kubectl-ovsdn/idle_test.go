package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	networkv1 "github.com/openshift/api/network/v1"
	unidlingv1alpha1 "github.com/openshift/api/unidling/v1alpha1"
	networkfake "github.com/openshift/client-go/network/clientset/versioned/fake"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/endpoints"
)

// named returns the metadata of an object in namespace shop, whose controller is "APIVERSION KIND NAME", or "".
func named(name, controller string) metav1.ObjectMeta {
	m := metav1.ObjectMeta{Namespace: "shop", Name: name, ResourceVersion: "7"}
	if fields := strings.Fields(controller); len(fields) == 3 {
		is := true
		m.OwnerReferences = []metav1.OwnerReference{{APIVersion: fields[0], Kind: fields[1], Name: fields[2], Controller: &is}}
	}
	return m
}

func idlePod(name, controller string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: named(name, controller), Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	pod.Labels = map[string]string{"app": "web"}
	return pod
}

func idleService(withSelector bool) *corev1.Service {
	service := &corev1.Service{ObjectMeta: named("web", ""), Spec: corev1.ServiceSpec{ClusterIP: "172.30.0.10"}}
	if withSelector {
		service.Spec.Selector = map[string]string{"app": "web"}
	}
	return service
}

// idling is a fake API server with the requests that change it.
type idling struct {
	kube     *fake.Clientset
	network  *networkfake.Clientset
	errOut   string // of the last call
	requests []string
	scaleErr func() error // of each change of a scale
}

func newIdling(t *testing.T, objects ...runtime.Object) *idling {
	t.Helper()
	two, zero := int32(2), int32(0)
	x := &idling{network: networkfake.NewClientset(), kube: fake.NewClientset(append(objects,
		&appsv1.Deployment{ObjectMeta: named("web", ""), Spec: appsv1.DeploymentSpec{Replicas: &two}},
		&appsv1.ReplicaSet{ObjectMeta: named("web-1", "apps/v1 Deployment web"), Spec: appsv1.ReplicaSetSpec{Replicas: &zero}},
		&appsv1.ReplicaSet{ObjectMeta: named("web-2", "apps/v1 Deployment web"), Spec: appsv1.ReplicaSetSpec{Replicas: &two}},
		&appsv1.ReplicaSet{ObjectMeta: named("ended", ""), Spec: appsv1.ReplicaSetSpec{Replicas: &zero}},
		&appsv1.ReplicaSet{ObjectMeta: named("rollout", "argoproj.io/v1alpha1 Rollout web"), Spec: appsv1.ReplicaSetSpec{Replicas: &two}},
		&appsv1.StatefulSet{ObjectMeta: named("db", "")},
		&corev1.ReplicationController{ObjectMeta: named("old", ""), Spec: corev1.ReplicationControllerSpec{Replicas: &two}},
	)...), scaleErr: func() error { return nil }}
	x.kube.PrependReactor("update", "*", func(action k8stesting.Action) (bool, runtime.Object, error) {
		scale, ok := action.(k8stesting.UpdateAction).GetObject().(*autoscalingv1.Scale)
		if !ok || action.GetSubresource() != "scale" {
			t.Errorf("got update of %+v, want one of a scale", action)
			return false, nil, nil
		}
		x.requests = append(x.requests, fmt.Sprintf("scale %s/%s to %d", action.GetResource().Resource, scale.Name, scale.Spec.Replicas))
		if scale.ResourceVersion == "" {
			t.Errorf("got a scale of %s without the version that was read", scale.Name)
		}
		return true, scale, x.scaleErr()
	})
	x.kube.PrependReactor("patch", "*", func(action k8stesting.Action) (bool, runtime.Object, error) {
		patch := string(action.(k8stesting.PatchAction).GetPatch())
		x.requests = append(x.requests, "patch "+action.GetResource().Resource)
		if !strings.Contains(patch, `"resourceVersion":"7"`) {
			t.Errorf("got patch %s, want one with the version that was read", patch)
		}
		return false, nil, nil
	})
	return x
}

func (x *idling) idle(t *testing.T) (string, error) {
	t.Helper()
	streams, _, out, errOut := genericiooptions.NewTestIOStreams()
	err := (&idler{IOStreams: streams, kube: x.kube, network: x.network, namespace: "shop"}).idle(t.Context(), "web", time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC))
	x.errOut = errOut.String()
	return out.String(), err
}

func TestIdle(t *testing.T) {
	ended := idlePod("job", "batch/v1 Job x")
	ended.Status.Phase = corev1.PodSucceeded
	x := newIdling(t, idleService(true), ended,
		idlePod("a", "apps/v1 ReplicaSet web-1"), idlePod("b", "apps/v1 ReplicaSet web-2"), idlePod("c", "apps/v1 ReplicaSet web-2"),
		idlePod("d", "apps/v1 StatefulSet db"), idlePod("e", "v1 ReplicationController old"), idlePod("f", "apps/v1 ReplicaSet ended"))
	out, err := x.idle(t)
	want := "service/web idled\ndeployment.apps/web scaled from 2 to 0\nreplicationcontroller/old scaled from 2 to 0\nstatefulset.apps/db scaled from 1 to 0\n"
	if err != nil || out != want {
		t.Errorf("got error %v and output\n%s\nwant\n%s", err, out, want)
	}
	requests := []string{"patch services", "scale deployments/web to 0", "scale replicationcontrollers/old to 0", "scale statefulsets/db to 0"}
	if diff := cmp.Diff(requests, x.requests); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	service, err := x.kube.CoreV1().Services("shop").Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const targets = `[{"kind":"Deployment","name":"web","group":"apps","replicas":2},{"kind":"ReplicationController","name":"old","replicas":2},` +
		`{"kind":"StatefulSet","name":"db","group":"apps","replicas":1}]`
	a := service.Annotations
	if a[unidlingv1alpha1.IdledAtAnnotation] != "2026-03-01T12:00:00Z" || a[unidlingv1alpha1.UnidleTargetAnnotation] != targets {
		t.Errorf("got annotations %v, want %s", a, targets)
	}
	if _, err := x.idle(t); err == nil || !strings.Contains(err.Error(), "is idled since 2026-03-01T12:00:00Z") {
		t.Errorf("of an idled service: got error %v", err)
	}
}

// unproxied returns a Service that the switch does not balance.
func unproxied(change func(*corev1.Service)) *corev1.Service {
	service := idleService(true)
	change(service)
	return service
}

// The command warns if no packet wakes the service, where the user may read the ClusterNetwork.
func TestIdle_serviceProxy(t *testing.T) {
	for proxy, want := range map[config.ServiceProxy]string{
		config.ServiceProxyOVS: "", config.ServiceProxyExternal: "service proxy of ClusterNetwork default is external", config.ServiceProxyUnset: "is external",
	} {
		t.Run("of "+string(proxy), func(t *testing.T) {
			x := newIdling(t, idleService(true), idlePod("a", "apps/v1 StatefulSet db"))
			o := &networkv1.ClusterNetwork{
				ObjectMeta: metav1.ObjectMeta{Name: networkv1.ClusterNetworkDefault}, PluginName: config.ModeNetworkPolicy.PluginName(), ServiceNetwork: "172.30.0.0/16",
				ClusterNetworks: []networkv1.ClusterNetworkEntry{{CIDR: "10.128.0.0/14", HostSubnetLength: 9}},
			}
			if proxy != config.ServiceProxyUnset {
				o.Annotations = map[string]string{config.ServiceProxyAnnotation: string(proxy)}
			}
			network, err := config.ParseNetwork(o)
			if err != nil {
				t.Fatal(err)
			}
			accepted, err := network.Accepted()
			if err != nil {
				t.Fatal(err)
			}
			o.Annotations = map[string]string{config.AcceptedAnnotation: accepted}
			if _, err := x.network.NetworkV1().ClusterNetworks().Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			if _, err := x.idle(t); err != nil || (x.errOut == "") != (want == "") || !strings.Contains(x.errOut, want) {
				t.Errorf("got error %v and warning %q, want %q", err, x.errOut, want)
			}
		})
	}
	x := newIdling(t, idleService(true), idlePod("a", "apps/v1 StatefulSet db"))
	if _, err := x.idle(t); err != nil || x.errOut != "" {
		t.Errorf("without the right to read it: got error %v and warning %q, want none", err, x.errOut)
	}
}

// A service that can't be idled is not changed.
func TestIdle_refused(t *testing.T) {
	for _, c := range []struct {
		name, want string
		objects    []runtime.Object
	}{
		{"no service", "not found", nil},
		{"no selector", "has no selector", []runtime.Object{idleService(false), idlePod("a", "apps/v1 StatefulSet db")}},
		{"no pods", "has no pods to scale", []runtime.Object{idleService(true)}},
		{"pod without controller", "pod a of service web has no controller", []runtime.Object{idleService(true), idlePod("a", "")}},
		{"DaemonSet", "those of DaemonSet x, which can't be idled", []runtime.Object{idleService(true), idlePod("a", "apps/v1 DaemonSet x")}},
		{"another owner", "belongs to Rollout web", []runtime.Object{idleService(true), idlePod("a", "apps/v1 ReplicaSet rollout")}},
		{"owner was deleted", "not found", []runtime.Object{idleService(true), idlePod("a", "apps/v1 ReplicaSet deleted")}},
		{"ending pods", "have 0 replicas", []runtime.Object{idleService(true), idlePod("a", "apps/v1 ReplicaSet ended")}},
		{"headless", "does not balance service web", []runtime.Object{unproxied(func(s *corev1.Service) { s.Spec.ClusterIP = corev1.ClusterIPNone })}},
		{"ExternalName", "scale its workloads by hand", []runtime.Object{unproxied(func(s *corev1.Service) {
			s.Spec.Type, s.Spec.ClusterIP = corev1.ServiceTypeExternalName, ""
		})}},
		{"IPv6", "has no IPv4 cluster IP", []runtime.Object{unproxied(func(s *corev1.Service) { s.Spec.ClusterIP = "fd00::10" })}},
		{"another proxy", "service.kubernetes.io/service-proxy-name", []runtime.Object{unproxied(func(s *corev1.Service) {
			s.Labels = map[string]string{endpoints.ProxyNameLabel: "other"}
		})}},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newIdling(t, c.objects...)
			out, err := x.idle(t)
			if err == nil || !strings.Contains(err.Error(), c.want) || out != "" || len(x.requests) > 0 {
				t.Errorf("got error %v, output %q and requests %q, want %q", err, out, x.requests, c.want)
			}
		})
	}
}

// The status of a Deployment changes at any time; its replicas only by another client.
func TestIdle_conflict(t *testing.T) {
	conflict := apierrors.NewConflict(schema.GroupResource{Group: "apps", Resource: "deployments"}, "web", errors.New("changed"))
	for name, scaled := range map[string]bool{"status": false, "replicas": true} {
		t.Run(name, func(t *testing.T) {
			x := newIdling(t, idleService(true), idlePod("a", "apps/v1 ReplicaSet web-2"))
			x.scaleErr = func() error {
				if len(x.requests) > 2 { // the patch, and the first attempt
					return nil
				}
				if scaled {
					five := int32(5)
					err := x.kube.Tracker().Update(appsv1.SchemeGroupVersion.WithResource("deployments"),
						&appsv1.Deployment{ObjectMeta: named("web", ""), Spec: appsv1.DeploymentSpec{Replicas: &five}}, "shop")
					if err != nil {
						t.Error(err)
					}
				}
				return conflict
			}
			_, err := x.idle(t)
			if (err != nil) != scaled || scaled && !strings.Contains(err.Error(), "it was scaled from 2 to 5 in the meantime") {
				t.Errorf("got error %v", err)
			}
		})
	}
}
