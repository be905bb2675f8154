package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/ovsdn/ovsdn/test/lab/checkout"
	"github.com/ovsdn/ovsdn/test/lab/components"
)

// userFolder is a folder beside deploy, as a page has people write it.
type userFolder struct{ root, kube, text string }

func readFolder(t *testing.T, page string) userFolder {
	t.Helper()
	root, err := checkout.Root(".")
	must(t, err)
	set, err := components.Build(t.Context(), components.Options{SourceDir: root, Progress: t.Logf})
	must(t, err)
	content, err := os.ReadFile(filepath.Join(root, "docs", page))
	must(t, err)
	_, text, _ := strings.Cut(string(content), "/kustomization.yaml <<EOF\n")
	text, _, ok := strings.Cut(text, "\nEOF\n")
	if !ok {
		t.Fatalf("docs/%s has no kustomization to copy", page)
	}
	return userFolder{root, set.Kube, text}
}

// with writes something else for a part of it.
func (f userFolder) with(t *testing.T, part, instead string) userFolder {
	t.Helper()
	if !strings.Contains(f.text, part) {
		t.Fatalf("there is no %q in\n%s", part, f.text)
	}
	f.text = strings.Replace(f.text, part, instead, 1)
	return f
}

// build returns what would be applied.
func (f userFolder) build(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	deploy, err := filepath.Rel(dir, filepath.Join(f.root, "deploy"))
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(strings.ReplaceAll(f.text, "../deploy", deploy)), 0o600))
	out, err := exec.CommandContext(t.Context(), f.kube, "kubectl", "kustomize", dir).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return string(out)
}

func wantIn(t *testing.T, built string, wanted ...string) {
	t.Helper()
	for _, w := range wanted {
		if !strings.Contains(built, w) {
			t.Errorf("there is no %q in\n%s", w, built)
		}
	}
	if strings.Contains(built, "image: ovsdn/") {
		t.Errorf("an image has no registry:\n%s", built)
	}
}

// The folder of docs/install.md builds, with each of the alternatives on the page.
func TestInstallPage_alternatives(t *testing.T) {
	folder := readFolder(t, "install.md")
	const networks, images = "\n  cluster-network: 10.128.0.0/14\n", "image: registry.example/ovsdn/node:v1.0.0\n"
	for overlay, mode := range map[string]string{
		"": "networkpolicy", "/overlays/ovs": "networkpolicy", "/overlays/subnet": "subnet", "/overlays/multitenant": "multitenant",
	} {
		t.Run("deploy"+overlay, func(t *testing.T) {
			built := folder.with(t, "- ../deploy\n", "- ../deploy"+overlay+"\n").build(t)
			wantIn(t, built, "\n  mode: "+mode+"\n", "\n  service-network: 10.96.0.0/12\n", networks, images, "\n  kube-apiserver: https://")
			if with := strings.Contains(built, "name: ovsdn-ovs\n"); with != (overlay == "/overlays/ovs") {
				t.Errorf("with Open vSwitch: %v", with)
			}
		})
	}
	t.Run("a mode with Open vSwitch", func(t *testing.T) {
		wantIn(t, folder.with(t, "- ../deploy\n", "- ../deploy/overlays/multitenant\ncomponents: [../deploy/components/ovs]\n").build(t),
			"\n  mode: multitenant\n", "name: ovsdn-ovs\n", "image: registry.example/ovsdn/ovs:v1.0.0\n")
	})
}

// Controllers prefer control-plane nodes, and a component allows no others.
func TestControllersRunOnControlPlaneNodes(t *testing.T) {
	folder := readFolder(t, "install.md")
	affinity := func(kustomization userFolder) *corev1.NodeAffinity {
		for part := range strings.SplitSeq(kustomization.build(t), "\n---\n") {
			var d appsv1.Deployment
			if err := yaml.Unmarshal([]byte(part), &d); err == nil && d.Kind == "Deployment" && d.Name == "ovsdn-controller" {
				return d.Spec.Template.Spec.Affinity.NodeAffinity
			}
		}
		t.Fatal("got no Deployment ovsdn-controller")
		return nil
	}
	of := func(term corev1.NodeSelectorTerm) bool {
		return len(term.MatchExpressions) == 1 && term.MatchExpressions[0].Key == "node-role.kubernetes.io/control-plane" && term.MatchExpressions[0].Operator == corev1.NodeSelectorOpExists
	}
	a := affinity(folder)
	if p := a.PreferredDuringSchedulingIgnoredDuringExecution; len(p) != 1 || !of(p[0].Preference) || a.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		t.Errorf("got affinity %v, want control-plane nodes preferred", a)
	}
	a = affinity(folder.with(t, "- ../deploy\n", "- ../deploy\ncomponents: [../deploy/components/control-plane]\n"))
	if r := a.RequiredDuringSchedulingIgnoredDuringExecution; r == nil || len(r.NodeSelectorTerms) != 1 || !of(r.NodeSelectorTerms[0]) {
		t.Errorf("got affinity %v, want control-plane nodes required", a)
	}
}

// After the deletion of the installation, Open vSwitch runs beside the uninstallation, in another namespace than that of an installation.
func TestUninstallPage_withOpenVSwitch(t *testing.T) {
	folder := readFolder(t, "uninstall.md")
	without := folder.build(t)
	wantIn(t, without, "image: registry.example/ovsdn/node:v1.0.0\n")
	with := folder.with(t, "# namespace:", "namespace:").with(t, "# components:", "components:").build(t)
	wantIn(t, with, "name: ovsdn-ovs\n", "image: registry.example/ovsdn/ovs:v1.0.0\n", "resourceNames:\n  - ovsdn-system\n")
	if strings.Contains(without, "ovsdn-ovs") || strings.Contains(with, "namespace: ovsdn-system\n") {
		t.Errorf("it is not all in the uninstallation's namespace:\n%s", with)
	}
}
