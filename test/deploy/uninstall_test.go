package deploy

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/installation"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/lab/checkout"
	"github.com/ovsdn/ovsdn/test/lab/controlplane"
)

// The pods of the uninstallation have the right to read the namespace of the installation, and no other right.
func TestUninstall_installedNetwork(t *testing.T) {
	t.Parallel() // most of the time it waits for its API server
	const uninstall = "ovsdn-uninstall"
	c := newCluster(t)
	root, err := checkout.Root(".")
	must(t, err)
	must(t, controlplane.Apply(t.Context(), c.config, os.DirFS(filepath.Join(root, "deploy", "uninstall"))))
	token, err := c.admin.kube.CoreV1().ServiceAccounts(uninstall).CreateToken(t.Context(), uninstall, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	must(t, err)
	config := rest.AnonymousClientConfig(c.config)
	config.BearerToken, config.QPS = token.Status.Token, -1
	account := clients(t, config)
	await.OK(t, admissionPatience, func(ctx context.Context) error { // rights are active some time after their creation
		if err := installation.CheckUninstalled(ctx, account.kube, system); apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
			return err
		}
		return nil
	})

	if err := installation.CheckUninstalled(t.Context(), account.kube, system); err == nil {
		t.Error("a network that is installed is not refused")
	} else {
		t.Log(err)
	}
	if err := installation.CheckUninstalled(t.Context(), account.kube, "kube-system"); !apierrors.IsForbidden(err) {
		t.Errorf("an unanswered request counts as a deleted namespace: %v", err)
	}
	// Without its controllers the API server never comes to the end of it.
	must(t, c.admin.kube.CoreV1().Namespaces().Delete(t.Context(), system, metav1.DeleteOptions{}))
	if err := installation.CheckUninstalled(t.Context(), account.kube, system); err != nil {
		t.Errorf("a network that is being deleted: %v", err)
	}
	if err := installation.CheckUninstalled(t.Context(), c.admin.kube, "never-installed"); err != nil {
		t.Errorf("a network that was never there: %v", err)
	}
	for _, r := range slices.Concat(nobodys(), reads(true, "/api/v1/namespaces", "/api/v1/nodes", "/api/v1/pods")) {
		r.check(t, account)
	}
}
