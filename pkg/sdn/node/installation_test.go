package node

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
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/ovsdn/ovsdn/test/apitest"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/lab/checkout"
	"github.com/ovsdn/ovsdn/test/lab/controlplane"
)

// An agent must know that all of its installation goes, and that it is not when only a part does, or its rights do.
func TestInstallationIsLeftOnlyWithItsNamespace(t *testing.T) {
	const system, account = "ovsdn-system", "ovsdn-node"
	config := apitest.Start(t)
	admin, adminOurs := apitest.Clients(t, config)
	t.Cleanup(func() { apitest.Disconnect(admin, adminOurs) })
	root, err := checkout.Root(".")
	must(t, err)
	must(t, controlplane.Apply(t.Context(), config, os.DirFS(filepath.Join(root, "deploy", "rbac"))))
	labels := map[string]string{"app": account}
	_, err = admin.AppsV1().DaemonSets(system).Create(t.Context(), &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: account},
		Spec: appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}},
	}, metav1.CreateOptions{})
	must(t, err)
	token, err := admin.CoreV1().ServiceAccounts(system).CreateToken(t.Context(), account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	must(t, err)
	own := rest.AnonymousClientConfig(config)
	own.BearerToken = token.Status.Token
	agent, ours := apitest.Clients(t, own)
	t.Cleanup(func() { apitest.Disconnect(agent, ours) })

	told := make(chan bool, 10)
	i, err := newInstallation(system, agent, func(leaving bool) { told <- leaving })
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { i.run(ctx) })
	defer running.Wait()
	defer cancel()
	if !cache.WaitForCacheSync(ctx.Done(), i.factory.Core().V1().Namespaces().Informer().HasSynced) {
		t.Fatal("the cache did not sync")
	}
	// The list is not yet the watch, which has to begin before the rights go.
	touched, err := admin.CoreV1().Namespaces().Patch(t.Context(), system, types.MergePatchType, []byte(`{"metadata":{"labels":{"touched":"yes"}}}`), metav1.PatchOptions{})
	must(t, err)
	await.OK(t, time.Minute, func(context.Context) error {
		seen, err := i.factory.Core().V1().Namespaces().Lister().Get(system)
		if err == nil && seen.ResourceVersion != touched.ResourceVersion {
			err = errors.New("the watch has not begun")
		}
		return err
	})

	must(t, admin.AppsV1().DaemonSets(system).Delete(t.Context(), account, metav1.DeleteOptions{}))
	must(t, admin.RbacV1().ClusterRoleBindings().Delete(t.Context(), account, metav1.DeleteOptions{}))
	must(t, admin.CoreV1().ServiceAccounts(system).Delete(t.Context(), account, metav1.DeleteOptions{}))
	await.OK(t, time.Minute, func(ctx context.Context) error {
		if _, err := agent.CoreV1().Namespaces().Get(ctx, system, metav1.GetOptions{}); !apierrors.IsForbidden(err) && !apierrors.IsUnauthorized(err) {
			return fmt.Errorf("the agent has rights still: %s", fmt.Sprint(err))
		}
		return nil
	})
	select {
	case leaving := <-told:
		t.Fatalf("told that it is leaving (%v) while the namespace is there", leaving)
	default:
	}
	if i.leaving.Load() {
		t.Fatal("it leaves while the namespace is there")
	}

	must(t, admin.CoreV1().Namespaces().Delete(t.Context(), system, metav1.DeleteOptions{}))
	select {
	case leaving := <-told:
		if !leaving || !i.leaving.Load() {
			t.Error("told that it stays")
		}
	case <-time.After(time.Minute):
		t.Error("it does not know that its namespace is being deleted")
	}
}

func TestInstallationInNoNamespaceIsNeverLeft(t *testing.T) {
	i, err := newInstallation("", nil, func(bool) { t.Error("told something") })
	must(t, err)
	i.run(t.Context())
	if i.leaving.Load() {
		t.Error("it leaves")
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
