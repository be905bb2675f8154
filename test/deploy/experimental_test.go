package deploy

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
	policyclient "sigs.k8s.io/network-policy-api/pkg/client/clientset/versioned"

	"github.com/ovsdn/ovsdn/test/apitest"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/lab/checkout"
	"github.com/ovsdn/ovsdn/test/lab/components"
)

const policyCRD = "policy.networking.k8s.io_clusternetworkpolicies.yaml"

// moduleCRD returns ClusterNetworkPolicy's CRD of a channel, as the API's module has it.
func moduleCRD(t *testing.T, channel string) map[string]any {
	t.Helper()
	dir, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/network-policy-api").Output()
	must(t, err)
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "config", "crd", channel, policyCRD))
	must(t, err)
	return readCRD(t, text)
}

func readCRD(t *testing.T, text []byte) map[string]any {
	t.Helper()
	var crd map[string]any
	must(t, yaml.Unmarshal(text, &crd))
	delete(crd, "status") // the module's has empty lists, which kustomize leaves out
	return crd
}

// TestPolicyCRDs: both CRDs are the API module's own, and with the experimental one the API server stores the peers that the standard one
// lacks.
func TestPolicyCRDs(t *testing.T) {
	t.Parallel() // most of the time it waits for its API server
	root, err := checkout.Root(".")
	must(t, err)
	set, err := components.Build(t.Context(), components.Options{SourceDir: root, Progress: t.Logf})
	must(t, err)
	dir := t.TempDir()
	deploy, err := filepath.Rel(dir, filepath.Join(root, "deploy"))
	must(t, err)
	kustomization, err := json.Marshal(map[string]any{
		"resources": []string{deploy}, "components": []string{filepath.Join(deploy, "components", "experimental-policies")},
	})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), kustomization, 0o600))
	built := func(folder string) map[string]any {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), set.Kube, "kubectl", "kustomize", folder).Output()
		must(t, err)
		for document := range strings.SplitSeq(string(out), "\n---\n") {
			if strings.Contains(document, "name: clusternetworkpolicies.policy.networking.k8s.io\n") {
				return readCRD(t, []byte(document))
			}
		}
		t.Fatalf("%s has no CRD of ClusterNetworkPolicies", folder)
		return nil
	}
	if diff := cmp.Diff(moduleCRD(t, "standard"), built(filepath.Join(root, "deploy"))); diff != "" {
		t.Errorf("deploy/crds is not the module's (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(moduleCRD(t, "experimental"), built(dir)); diff != "" {
		t.Errorf("the component is not the module's (-want +got):\n%s", diff)
	}

	admin := apitest.Start(t)
	kubeconfig := apitest.Kubeconfig(t, admin)
	client, err := policyclient.NewForConfig(admin)
	must(t, err)
	policies := client.PolicyV1alpha2().ClusterNetworkPolicies()
	object := &policyv1alpha2.ClusterNetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "peers"},
		Spec: policyv1alpha2.ClusterNetworkPolicySpec{
			Tier: policyv1alpha2.AdminTier, Priority: 1, Subject: policyv1alpha2.ClusterNetworkPolicySubject{Namespaces: &metav1.LabelSelector{}},
			Egress: []policyv1alpha2.ClusterNetworkPolicyEgressRule{{
				Action: policyv1alpha2.ClusterNetworkPolicyRuleActionAccept,
				To: []policyv1alpha2.ClusterNetworkPolicyEgressPeer{
					{Nodes: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}},
					{DomainNames: []policyv1alpha2.DomainName{"example.com"}},
				},
			}},
		},
	}
	if _, err := policies.Create(t.Context(), object, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err == nil {
		t.Error("the standard CRD takes a peer of nodes")
	} else {
		t.Log(err)
	}
	out, err := exec.CommandContext(t.Context(), set.Kube, "kubectl", "--kubeconfig", kubeconfig, "apply", "--validate=strict", "-k", dir).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	// The API server serves the new kind some time after it has stored it.
	await.OK(t, admissionPatience, func(ctx context.Context) error {
		stored, err := policies.Create(ctx, object, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			return err
		}
		if diff := cmp.Diff(object.Spec, stored.Spec); diff != "" {
			return fmt.Errorf("stored (-want +got):\n%s", diff)
		}
		return nil
	})
}
