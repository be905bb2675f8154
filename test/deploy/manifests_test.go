package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/ovsdn/ovsdn/images/product"
	"github.com/ovsdn/ovsdn/pkg/sdn/master"
	"github.com/ovsdn/ovsdn/pkg/sdn/node"
	"github.com/ovsdn/ovsdn/test/apitest"
	"github.com/ovsdn/ovsdn/test/lab/checkout"
	"github.com/ovsdn/ovsdn/test/lab/components"
)

// The values of network.env are the defaults of the programs.
func TestNetworkEnvHasTheProgramsDefaults(t *testing.T) {
	root, err := checkout.Root(".")
	must(t, err)
	content, err := os.ReadFile(filepath.Join(root, "deploy", "base", "network.env"))
	must(t, err)
	got := map[string]string{}
	for line := range strings.Lines(string(content)) {
		line = strings.TrimSpace(line)
		if key, value, ok := strings.Cut(line, "="); ok && !strings.HasPrefix(line, "#") {
			got[key] = value
		}
	}
	m, n := master.Defaults(), node.Defaults()
	want := map[string]string{
		"kube-apiserver":  "",
		"mode":            m.Mode,
		"cluster-network": strings.Join(m.ClusterNetworks, ","),
		"host-bits":       strconv.Itoa(int(m.HostBits)),
		"service-network": m.ServiceNetwork,
		"vxlan-port":      strconv.Itoa(int(m.VXLANPort)),
		"mtu":             strconv.Itoa(int(m.MTU)),
		"service-proxy":   m.ServiceProxy,
		"datapath":        n.Datapath,
		"host-access":     string(n.HostAccess),

		"host-network-namespaces": strings.Join(n.HostNetworkNamespaces, ","),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// The manifests are applied as by a user, and the API server accepts every field.
func TestEveryKustomizationIsApplied(t *testing.T) {
	t.Parallel() // as other tests with an API server
	root, err := checkout.Root(".")
	must(t, err)
	set, err := components.Build(t.Context(), components.Options{SourceDir: root, Progress: t.Logf})
	must(t, err)
	kubectl := func(t *testing.T, want string, args ...string) {
		t.Helper()
		out, err := exec.CommandContext(t.Context(), set.Kube, append([]string{"kubectl"}, args...)...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%v\n%s", err, out)
		}
	}
	kubeconfig := apitest.Kubeconfig(t, apitest.Start(t))
	for folder, want := range map[string]string{
		".": "daemonset.apps/ovsdn-node", "overlays/ovs": "daemonset.apps/ovsdn-ovs", "uninstall": "daemonset.apps/ovsdn-uninstall",
	} {
		t.Run(folder, func(t *testing.T) {
			kubectl(t, want, "--kubeconfig", kubeconfig, "apply", "--validate=strict", "-k", filepath.Join(root, "deploy", folder))
		})
	}
	for _, mode := range []string{"subnet", "multitenant", "networkpolicy"} {
		t.Run(mode, func(t *testing.T) {
			kubectl(t, "\n  mode: "+mode+"\n", "kustomize", filepath.Join(root, "deploy", "overlays", mode))
		})
	}
}

// Agent and controller have a memory limit, which is also GOMEMLIMIT.
func TestMemoryIsLimited(t *testing.T) {
	root, err := checkout.Root(".")
	must(t, err)
	for _, manifest := range []string{"node.yaml", "controller.yaml"} {
		content, err := os.ReadFile(filepath.Join(root, "deploy", "base", manifest))
		must(t, err)
		containers := 0
		for document := range strings.SplitSeq(string(content), "\n---\n") {
			var o appsv1.Deployment // a DaemonSet has its containers in the same place
			must(t, yaml.Unmarshal([]byte(document), &o))
			for _, c := range o.Spec.Template.Spec.Containers {
				containers++
				if c.Resources.Limits.Memory().IsZero() || c.Resources.Requests.Memory().IsZero() {
					t.Errorf("%s: container %s has memory limit %s and request %s, want both", manifest, c.Name, c.Resources.Limits.Memory(), c.Resources.Requests.Memory())
				}
				i := slices.IndexFunc(c.Env, func(v corev1.EnvVar) bool { return v.Name == "GOMEMLIMIT" })
				if i < 0 || c.Env[i].ValueFrom == nil || c.Env[i].ValueFrom.ResourceFieldRef == nil || c.Env[i].ValueFrom.ResourceFieldRef.Resource != "limits.memory" {
					t.Errorf("%s: GOMEMLIMIT of container %s is not its limits.memory", manifest, c.Name)
				}
			}
		}
		if containers == 0 {
			t.Errorf("%s has no container", manifest)
		}
	}
}

// Kinds that another project installed can be left out, as in docs/install.md.
func TestClusterNetworkPoliciesCanBeLeftOut(t *testing.T) {
	root, err := checkout.Root(".")
	must(t, err)
	set, err := components.Build(t.Context(), components.Options{SourceDir: root, Progress: t.Logf})
	must(t, err)
	page, err := os.ReadFile(filepath.Join(root, "docs", "install.md"))
	must(t, err)
	_, patches, _ := strings.Cut(string(page), "```yaml\n")
	patches, _, ok := strings.Cut(patches, "```")
	if !ok {
		t.Fatal("docs/install.md has no patch for that")
	}
	dir := t.TempDir()
	base, err := filepath.Rel(dir, filepath.Join(root, "deploy"))
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte("resources: ["+base+"]\n"+patches), 0o600))
	out, err := exec.CommandContext(t.Context(), set.Kube, "kubectl", "kustomize", dir).CombinedOutput()
	must(t, err)
	if left := string(out); strings.Contains(left, "name: clusternetworkpolicies.") || !strings.Contains(left, "name: hostsubnets.") {
		t.Errorf("the kinds are not all but one:\n%s", left)
	}
}

// The component that make images writes pins the images by digest, wherever the user's registry is.
func TestImagesArePinnedByDigest(t *testing.T) {
	root, err := checkout.Root(".")
	must(t, err)
	set, err := components.Build(t.Context(), components.Options{SourceDir: root, Progress: t.Logf})
	must(t, err)
	digest := func(digit string) string { return "sha256:" + strings.Repeat(digit, 64) }
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "images"), 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "images", "kustomization.yaml"), product.Component(map[product.Name]string{
		product.Controller: digest("a"), product.Node: digest("b"), product.OVS: digest("c"),
	}), 0o600))
	overlay, err := filepath.Rel(dir, filepath.Join(root, "deploy", "overlays", "ovs"))
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte("resources: ["+overlay+"]\ncomponents: [images]\nimages:\n"+
		"- {name: ovsdn/controller, newName: registry.example/ovsdn/controller}\n- {name: ovsdn/node, newName: registry.example/ovsdn/node}\n"), 0o600))
	out, err := exec.CommandContext(t.Context(), set.Kube, "kubectl", "kustomize", dir).CombinedOutput()
	must(t, err)
	got := map[string]int{}
	for line := range strings.Lines(string(out)) {
		if _, image, ok := strings.Cut(strings.TrimSpace(line), "image: "); ok {
			got[image]++
		}
	}
	want := map[string]int{
		"registry.example/ovsdn/controller@" + digest("a"): 1, "registry.example/ovsdn/node@" + digest("b"): 1, "ovsdn/ovs@" + digest("c"): 2,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("images (-want +got):\n%s", diff)
	}
}
