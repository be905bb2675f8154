package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
)

// waveTime is for a hundred pods to start or to end.
const waveTime = 3 * time.Minute

// deployment is many pods that do nothing and end at once.
type deployment struct {
	*cluster
	namespace, name string
}

func (c *cluster) deploy(t *testing.T, namespace string) *deployment {
	t.Helper()
	const name = "wave"
	labels := map[string]string{"app": name}
	none, grace, noToken := int32(0), int64(0), false
	_, err := c.Kube.AppsV1().Deployments(namespace).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &none,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					TerminationGracePeriodSeconds: &grace,
					AutomountServiceAccountToken:  &noToken,
					Containers: []corev1.Container{{
						Name: "pause", Image: fixture.PodImage, ImagePullPolicy: corev1.PullNever, Args: []string{"pause"},
					}},
				},
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return &deployment{cluster: c, namespace: namespace, name: name}
}

// scale asks for that many pods.
func (d *deployment) scale(t *testing.T, replicas int) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas)
	if _, err := d.Kube.AppsV1().Deployments(d.namespace).Patch(t.Context(), d.name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// reaches waits until that many pods exist and are ready.
func (d *deployment) reaches(t *testing.T, replicas int) {
	t.Helper()
	began := time.Now()
	fixture.Eventually(t, waveTime, fmt.Sprintf("%d pods are ready", replicas), func(ctx context.Context) error {
		now, err := d.Kube.AppsV1().Deployments(d.namespace).Get(ctx, d.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if s := now.Status; int(s.Replicas) != replicas || int(s.ReadyReplicas) != replicas || s.ObservedGeneration != now.Generation {
			return fmt.Errorf("there are %d, of which %d are ready", s.Replicas, s.ReadyReplicas)
		}
		return nil
	})
	t.Logf("%d pods are ready after %.1fs", replicas, time.Since(began).Seconds())
}
