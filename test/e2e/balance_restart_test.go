package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"sync/atomic"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
)

// drainTime is how many seconds a pod of a service by TCP serves after its deletion.
const drainTime = 5

// testRollingRestart: while a deployment is restarted, and all agents are killed as it begins, no connection to its service fails.
func testRollingRestart(t *testing.T, x *trio) {
	const name = "web"
	to := netip.AddrPortFrom(x.deployWeb(t, name, drainTime), 80)
	loads := []*load{x.startLoad(t, x.b.End(), to, offeredRate/2), x.startLoad(t, x.c.End(), to, offeredRate/2)}
	x.whileRestarted(t, name, func() { x.killAgents(t, fixture.Node1, fixture.Node2) })
	x.whileRestarted(t, name, func() {}) // the agents run
	for _, l := range loads {
		l.stop(t)
	}
	fastEnough(t, loads...)
}

// deployWeb creates a deployment of two pods, which serve for drain seconds after their deletion, with a service of the same name. It returns the service's address.
func (x *trio) deployWeb(t *testing.T, name string, drain int64) netip.Addr {
	t.Helper()
	labels, replicas, unavailable := map[string]string{"app": name}, int32(2), intstr.FromInt32(0)
	template := fixture.Netexec(name, "").Spec
	template.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: drain}}}
	grace := 2 * drain
	template.TerminationGracePeriodSeconds = &grace
	_, err := x.Kube.AppsV1().Deployments(x.namespace).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Strategy: appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{MaxUnavailable: &unavailable}},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: template},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // else it would create its pods again while the namespace is deleted
		foreground := metav1.DeletePropagationForeground
		err := x.Kube.AppsV1().Deployments(x.namespace).Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{PropagationPolicy: &foreground})
		if err != nil {
			t.Error(err)
		}
	})
	addr := x.CreateService(t, x.namespace, name, servicePort{Protocol: "TCP", Port: 80, Target: fixture.HTTPPort}, labels)
	fixture.Eventually(t, waveTime, "the deployment answers", fixture.AsksHTTP(x.b.NetNS, addr, 80))
	(&deployment{cluster: x.cluster, namespace: x.namespace, name: name}).reaches(t, int(replicas))
	return addr
}

// whileRestarted calls the function while the deployment is restarted again and again, at least once. It returns the number of restarts.
func (x *trio) whileRestarted(t *testing.T, name string, do func()) (restarts int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*fixture.NodeTime)
	defer cancel()
	kubectl := x.KubectlArgs("--namespace=" + x.namespace) // of the lab's state, which a reload reads again
	var done atomic.Bool
	failed := make(chan error, 1)
	go func() {
		defer close(failed)
		for !done.Load() || restarts == 0 {
			if err := x.restartWeb(ctx, kubectl, name); err != nil {
				failed <- err
				return
			}
			restarts++
		}
	}()
	defer func() { // also if the function ends the test
		if !done.Swap(true) {
			cancel()
		}
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}()
	do()
	done.Store(true)
	return // after the last restart
}

// restartWeb restarts the deployment's pods one by one, and waits until the old ones are deleted. It polls nothing, which would slow down the clients.
func (x *trio) restartWeb(ctx context.Context, kubectl []string, name string) error {
	pods, err := x.Kube.CoreV1().Pods(x.namespace).List(ctx, metav1.ListOptions{LabelSelector: "app=" + name})
	if err != nil {
		return err
	}
	deleted := []string{"wait", "--for=delete", "--timeout=" + waveTime.String()}
	for _, p := range pods.Items {
		deleted = append(deleted, "pod/"+p.Name)
	}
	for _, command := range [][]string{{"rollout", "restart", "deployment/" + name}, {"rollout", "status", "deployment/" + name}, deleted} {
		args := slices.Concat(kubectl, command)
		if output, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("kubectl %v: %w: %s", command, err, output)
		}
	}
	return nil
}
