package deploy

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	unidlingv1alpha1 "github.com/openshift/api/unidling/v1alpha1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/master"
	"github.com/ovsdn/ovsdn/test/apitest"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/lab/checkout"
	"github.com/ovsdn/ovsdn/test/lab/components"
	"github.com/ovsdn/ovsdn/test/lab/controlplane"
)

// The component of docs/idling.md adds the flag, to agents and controllers, and its rights.
func TestUnidlingComponent(t *testing.T) {
	root, err := checkout.Root(".")
	must(t, err)
	set, err := components.Build(t.Context(), components.Options{SourceDir: root, Progress: t.Logf})
	must(t, err)
	dir := t.TempDir()
	deploy, err := filepath.Rel(dir, filepath.Join(root, "deploy"))
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte("resources: ["+deploy+"]\ncomponents: ["+deploy+"/components/unidling]\n"), 0o600))
	out, err := exec.CommandContext(t.Context(), set.Kube, "kubectl", "kustomize", dir).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for w, want := range map[string]int{"        - -v=2\n        - --unidle\n": 2, "kind: ClusterRole\nmetadata:\n  name: ovsdn-unidling\n": 1} {
		if got := strings.Count(string(out), w); got != want {
			t.Errorf("got %d times %q, want %d, in\n%s", got, w, want, out)
		}
	}
}

// scaleTo returns a request that scales Deployment web.
func scaleTo(replicas int32) func(context.Context, as) error {
	return func(ctx context.Context, client as) error {
		_, err := client.kube.AppsV1().Deployments(metav1.NamespaceDefault).UpdateScale(ctx, "web", &autoscalingv1.Scale{
			ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "web"}, Spec: autoscalingv1.ScaleSpec{Replicas: replicas},
		}, metav1.UpdateOptions{})
		return err
	}
}

// idleAs returns a request that writes an annotation of Service web, or of its subresource; an empty value removes it.
func idleAs(annotation, value string, subresources ...string) func(context.Context, as) error {
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, annotation, value)
	if value == "" {
		patch = fmt.Sprintf(`{"metadata":{"annotations":{%q:null}}}`, annotation)
	}
	return func(ctx context.Context, client as) error {
		_, err := client.kube.CoreV1().Services(metav1.NamespaceDefault).Patch(ctx, "web", types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresources...)
		return err
	}
}

// TestUnidling idles services as users, with and without the right to scale workloads, and lets the real controller wake one.
func TestUnidling(t *testing.T) {
	t.Parallel() // most of the time it waits for its API server
	c := newCluster(t)
	root, err := checkout.Root(".")
	must(t, err)
	must(t, controlplane.Apply(t.Context(), c.config, os.DirFS(filepath.Join(root, "deploy", "components", "unidling"))))
	addWorkload(t, c.admin)
	addLeftover(t, c.admin)
	services := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"services", "services/status"}, Verbs: []string{"get", "patch"}}
	grant(t, c.admin.kube, "tenant", services)
	grant(t, c.admin.kube, "editor", services,
		rbacv1.PolicyRule{APIGroups: []string{"apps"}, Resources: []string{"deployments/scale", "replicasets/scale", "statefulsets/scale"}, Verbs: []string{"update"}},
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"replicationcontrollers/scale"}, Verbs: []string{"update"}})
	tenant := clients(t, apitest.AsServiceAccount(c.config, metav1.NamespaceDefault, "tenant"))
	editor := clients(t, apitest.AsServiceAccount(c.config, metav1.NamespaceDefault, "editor"))
	const targets = `[{"kind":"Deployment","name":"web","group":"apps","replicas":2}]`
	tries := 0
	await.OK(t, admissionPatience, func(ctx context.Context) error {
		tries++
		if err := idleAs(unidlingv1alpha1.UnidleTargetAnnotation, fmt.Sprint(targets, tries))(ctx, tenant); !apierrors.IsForbidden(err) {
			return fmt.Errorf("a tenant's list is not refused, but %s", fmt.Sprint(err))
		}
		return idleAs("ready", "true")(ctx, tenant)
	})
	for _, r := range []request{
		refused("a list of a tenant who can't scale", idleAs(unidlingv1alpha1.UnidleTargetAnnotation, targets)),
		refused("his list by the status", idleAs(unidlingv1alpha1.UnidleTargetAnnotation, targets, "status")),
		allowed("another annotation of his", idleAs("other", "value")),
		allowed("another annotation by the status", idleAs("other", "value", "status")),
		allowed("no list", idleAs(unidlingv1alpha1.UnidleTargetAnnotation, "")), // one from before the policy was active
		allowed("the time without a list", idleAs(unidlingv1alpha1.IdledAtAnnotation, "2025-01-01T00:00:00Z")),
	} {
		r.check(t, tenant)
	}
	for _, r := range []request{
		allowed("a list of an editor", idleAs(unidlingv1alpha1.UnidleTargetAnnotation, targets)),
		allowed("the time", idleAs(unidlingv1alpha1.IdledAtAnnotation, time.Now().UTC().Format(time.RFC3339))),
		allowed("scale", scaleTo(0)),
	} {
		r.check(t, editor)
	}
	for _, r := range []request{
		allowed("an annotation beside the list", idleAs("other", "again")),
		refused("a time beside the list", idleAs(unidlingv1alpha1.IdledAtAnnotation, "2026-01-02T00:00:00Z")),
		refused("a time beside the list by the status", idleAs(unidlingv1alpha1.IdledAtAnnotation, "2026-01-02T00:00:00Z", "status")),
	} {
		r.check(t, tenant)
	}
	wakeWeb(t, c)
}

// addWorkload creates Service and Deployment web, and a ready endpoint, as kube-controller-manager does.
func addWorkload(t *testing.T, admin as) {
	t.Helper()
	app := map[string]string{"app": "web"}
	_, err := admin.kube.CoreV1().Services(metav1.NamespaceDefault).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{Selector: app, Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	must(t, err)
	ready := slice("web", discoveryv1.AddressTypeIPv4, "192.0.2.7")
	ready.Labels = map[string]string{discoveryv1.LabelServiceName: "web"}
	_, err = admin.kube.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Create(t.Context(), ready, metav1.CreateOptions{})
	must(t, err)
	_, err = admin.kube.AppsV1().Deployments(metav1.NamespaceDefault).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: app},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: app}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
			},
		},
	}, metav1.CreateOptions{})
	must(t, err)
}

// addLeftover creates Service left, which was idled long ago and has an endpoint.
func addLeftover(t *testing.T, admin as) {
	t.Helper()
	_, err := admin.kube.CoreV1().Services(metav1.NamespaceDefault).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "left", Annotations: map[string]string{unidlingv1alpha1.IdledAtAnnotation: "2025-01-01T00:00:00Z"}},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	must(t, err)
	ready := slice("left", discoveryv1.AddressTypeIPv4, "192.0.2.8")
	ready.Labels = map[string]string{discoveryv1.LabelServiceName: "left"}
	_, err = admin.kube.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Create(t.Context(), ready, metav1.CreateOptions{})
	must(t, err)
}

// wakeWeb runs a controller with the rights of its account, and lets an agent report a packet. Service left is no longer idled, without a packet.
func wakeWeb(t *testing.T, c *cluster) {
	t.Helper()
	cfg := master.Defaults()
	cfg.REST, cfg.Unidle = apitest.AsServiceAccount(c.config, system, "ovsdn-controller"), true
	cfg.LeaderElect, cfg.HealthzAddress, cfg.Metrics.Address = false, "0", "0"
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- master.Run(ctx, cfg) }()
	t.Cleanup(func() {
		cancel()
		must(t, <-ended)
	})
	agent := c.as(t, "ovsdn-node", "agent-on-node1")
	e := event("packet", "ovsdn-node", "node1", "Service", "web")
	e.InvolvedObject.Namespace = metav1.NamespaceDefault
	e.Reason, e.Type, e.FirstTimestamp, e.LastTimestamp = eventreason.NeedPods, corev1.EventTypeNormal, metav1.Now(), metav1.Now()
	must(t, createEvent(e)(t.Context(), agent))
	await.OK(t, admissionPatience, func(ctx context.Context) error {
		d, err := c.admin.kube.AppsV1().Deployments(metav1.NamespaceDefault).Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			return err
		}
		s, err := c.admin.kube.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			return err
		}
		left, err := c.admin.kube.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, "left", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(left.Annotations) > 0 {
			return fmt.Errorf("got annotations %v of a service with endpoints, want none", left.Annotations)
		}
		_, idled := s.Annotations[unidlingv1alpha1.IdledAtAnnotation]
		_, listed := s.Annotations[unidlingv1alpha1.UnidleTargetAnnotation]
		if *d.Spec.Replicas != 2 || idled || listed || s.Annotations["other"] == "" {
			return fmt.Errorf("got %d replicas and annotations %v, want 2, and neither annotation of an idled service", *d.Spec.Replicas, s.Annotations)
		}
		return nil
	})
}
