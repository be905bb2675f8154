package installation

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/ovsdn/ovsdn/test/apitest"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/lab/checkout"
	"github.com/ovsdn/ovsdn/test/lab/controlplane"
	"github.com/ovsdn/ovsdn/test/tier"
)

func TestMain(m *testing.M) { await.VerifyTestMain(m) }

// Only the deletion of the namespace is the end of the installation, not the deletion of the DaemonSet or of the agent's permissions.
func TestInstallation_deleted(t *testing.T) {
	tier.Parallel(t)
	const system, account = "ovsdn-system", "ovsdn-node"
	config := apitest.Start(t)
	admin, adminOurs := apitest.Clients(t, config)
	t.Cleanup(func() { apitest.Disconnect(admin, adminOurs) })
	root, err := checkout.Root(".")
	must(t, err)
	must(t, controlplane.Apply(t.Context(), config, os.DirFS(filepath.Join(root, "deploy", "rbac"))))
	agent := newAgentClient(t, config, admin, system, account)

	changes := make(chan bool, 10)
	i, err := New(system, agent, func(deleting bool) { changes <- deleting })
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { i.Run(ctx) })
	defer running.Wait()
	defer cancel()
	if !cache.WaitForCacheSync(ctx.Done(), i.factory.Core().V1().Namespaces().Informer().HasSynced) {
		t.Fatal("the cache did not sync")
	}
	// The list precedes the watch, which has to begin before the permissions are deleted.
	touched, err := admin.CoreV1().Namespaces().Patch(t.Context(), system, types.MergePatchType, []byte(`{"metadata":{"labels":{"touched":"yes"}}}`), metav1.PatchOptions{})
	must(t, err)
	await.OK(t, 90*time.Second, func(context.Context) error {
		seen, err := i.factory.Core().V1().Namespaces().Lister().Get(system)
		if err == nil && seen.ResourceVersion != touched.ResourceVersion {
			err = errors.New("the watch has not begun")
		}
		return err
	})

	must(t, admin.AppsV1().DaemonSets(system).Delete(t.Context(), account, metav1.DeleteOptions{}))
	must(t, admin.RbacV1().ClusterRoleBindings().Delete(t.Context(), account, metav1.DeleteOptions{}))
	must(t, admin.CoreV1().ServiceAccounts(system).Delete(t.Context(), account, metav1.DeleteOptions{}))
	await.OK(t, 90*time.Second, func(ctx context.Context) error {
		if _, err := agent.CoreV1().Namespaces().Get(ctx, system, metav1.GetOptions{}); !apierrors.IsForbidden(err) && !apierrors.IsUnauthorized(err) {
			return fmt.Errorf("the agent still has permissions: %s", fmt.Sprint(err))
		}
		return nil
	})
	select {
	case deleting := <-changes:
		t.Fatalf("got onChange(%v) while the namespace exists, want no call", deleting)
	default:
	}
	if i.deleting.Load() {
		t.Fatal("got deleting while the namespace exists")
	}

	must(t, admin.CoreV1().Namespaces().Delete(t.Context(), system, metav1.DeleteOptions{}))
	select {
	case deleting := <-changes:
		if !deleting || !i.deleting.Load() {
			t.Errorf("got onChange(%v), want onChange(true)", deleting)
		}
	case <-time.After(90 * time.Second):
		t.Error("no call of onChange after the deletion of the namespace")
	}
}

// newAgentClient creates the DaemonSet of the agent, and returns a client with the permissions of its service account.
func newAgentClient(t *testing.T, config *rest.Config, admin kubernetes.Interface, system, account string) kubernetes.Interface {
	t.Helper()
	labels := map[string]string{"app": account}
	_, err := admin.AppsV1().DaemonSets(system).Create(t.Context(), &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: account},
		Spec: appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}},
	}, metav1.CreateOptions{})
	must(t, err)
	token, err := admin.CoreV1().ServiceAccounts(system).CreateToken(t.Context(), account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	must(t, err)
	agentConfig := rest.AnonymousClientConfig(config)
	agentConfig.BearerToken = token.Status.Token
	agent, ours := apitest.Clients(t, agentConfig)
	t.Cleanup(func() { apitest.Disconnect(agent, ours) })
	return agent
}

func TestInstallation_noNamespace(t *testing.T) {
	i, err := New("", nil, func(bool) { t.Error("onChange called") })
	must(t, err)
	i.Run(t.Context())
	if i.deleting.Load() {
		t.Error("got deleting, want not")
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
