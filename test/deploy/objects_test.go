package deploy

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/ovsdn/ovsdn/pkg/sdn/node"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/installation"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/lab/checkout"
	"github.com/ovsdn/ovsdn/test/lab/controlplane"
)

// What the installation creates, and then its uninstallation. One API server serves all.
func TestInstalledObjects(t *testing.T) {
	t.Parallel() // most of the time it waits for its API server
	c := newCluster(t)
	t.Run("host network namespace", func(t *testing.T) { testHostNetworkNamespace(t, c) })
	t.Run("diagnostics roles", func(t *testing.T) { testDiagnosticsRoles(t, c) })
	t.Run("uninstall", func(t *testing.T) { testUninstall(t, c) })
}

// Both ways to install create the namespace that represents the host networks by default, with OpenShift's label.
func testHostNetworkNamespace(t *testing.T, c *cluster) {
	for _, name := range node.Defaults().HostNetworkNamespaces {
		ns, err := c.admin.kube.CoreV1().Namespaces().Get(t.Context(), name, metav1.GetOptions{})
		must(t, err)
		want := map[string]string{"policy-group.network.openshift.io/host-network": "", corev1.LabelMetadataName: name}
		if diff := cmp.Diff(want, ns.Labels); diff != "" {
			t.Errorf("labels of %s (-want +got):\n%s", name, diff)
		}
	}
}

// Tenants that may edit a namespace may create traces and probes in it, and have no other right of diagnostics: captures have a role of their own.
func testDiagnosticsRoles(t *testing.T, c *cluster) {
	rule := func(resources string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{"diagnostics.ovsdn.io"}, Resources: strings.Fields(resources), Verbs: verbs}
	}
	for name, want := range map[string]rbacv1.ClusterRole{
		"ovsdn-traces": {
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"rbac.authorization.k8s.io/aggregate-to-edit": "true"}},
			Rules:      []rbacv1.PolicyRule{rule("traces", "create")},
		},
		"ovsdn-probes": {
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"rbac.authorization.k8s.io/aggregate-to-edit": "true"}},
			Rules:      []rbacv1.PolicyRule{rule("probes", "create")},
		},
		"ovsdn-verifications":      {Rules: []rbacv1.PolicyRule{rule("verifications", "create")}},
		"ovsdn-captures":           {Rules: []rbacv1.PolicyRule{rule("captures/attach", "create")}},
		"ovsdn-diagnostics-reader": {Rules: []rbacv1.PolicyRule{rule("nodestatuses nodetraffics", "get", "list"), rule("nodeflows", "get")}},
	} {
		got, err := c.admin.kube.RbacV1().ClusterRoles().Get(t.Context(), name, metav1.GetOptions{})
		must(t, err)
		if diff := cmp.Diff(want, rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Labels: got.Labels}, Rules: got.Rules}); diff != "" {
			t.Errorf("ClusterRole %s (-want +got):\n%s", name, diff)
		}
	}
}

// The pods of the uninstallation have the right to read the namespace of the installation, and no other right.
func testUninstall(t *testing.T, c *cluster) {
	const uninstall = "ovsdn-uninstall"
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
