package lab

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/ovsdn/ovsdn/images/product"
)

// The lab installs deploy with its own addresses, tags and one label that excludes a node from the agents.
func TestKustomization(t *testing.T) {
	s := state{Shape: DefaultShape(), Tags: map[product.Name]string{product.Controller: "lab-1", product.Node: "lab-2"}}
	text := kustomization("../deploy", &s)
	var k struct {
		Resources          []string
		ConfigMapGenerator []struct{ Literals []string }
		Images             []struct{ Name, NewTag string }
		Patches            []struct{ Patch string }
		Replicas           []struct {
			Name  string
			Count int
		}
	}
	if err := yaml.Unmarshal([]byte(text), &k); err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	if len(k.Replicas) != 1 || k.Replicas[0].Name != "ovsdn-controller" || k.Replicas[0].Count != 2 {
		t.Errorf("replicas are %+v, want 2 of the controller on two nodes", k.Replicas)
	}
	if diff := cmp.Diff([]string{"../deploy"}, k.Resources); diff != "" {
		t.Errorf("resources (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{
		"kube-apiserver=https://172.31.0.1:6443", "mode=subnet", "cluster-network=10.128.0.0/14", "host-bits=9", "service-network=172.30.0.0/16",
		"service-proxy=ovs", "datapath=netdev",
	}, k.ConfigMapGenerator[0].Literals); diff != "" {
		t.Errorf("settings (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]struct{ Name, NewTag string }{{"ovsdn/controller", "lab-1"}, {"ovsdn/node", "lab-2"}}, k.Images); diff != "" {
		t.Errorf("images (-want +got):\n%s", diff)
	}
	var patch appsv1.DaemonSet
	if err := yaml.Unmarshal([]byte(k.Patches[0].Patch), &patch); err != nil {
		t.Fatal(err)
	}
	terms := patch.Spec.Template.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	if patch.Name != agentUnit || terms[0].MatchExpressions[0].Key != noAgentLabel {
		t.Errorf("patch of %s: %v", patch.Name, terms)
	}
}

// Nodes without Open vSwitch of their own get it with the rest, by the overlay that has it.
func TestKustomizationWithSwitch(t *testing.T) {
	s := state{Shape: DefaultShape(), Tags: map[product.Name]string{product.OVS: "lab-3"}}
	if s.overlay() != "." || strings.Contains(kustomization("../deploy", &s), "ovsdn/ovs") {
		t.Errorf("hosts have Open vSwitch, but %s is installed:\n%s", s.overlay(), kustomization("../deploy", &s))
	}
	s.Shape.Switch = ImageSwitch
	if s.overlay() != "overlays/ovs" || !strings.Contains(kustomization("../deploy", &s), "{name: ovsdn/ovs, newTag: lab-3}") {
		t.Errorf("hosts have no Open vSwitch, and %s is installed:\n%s", s.overlay(), kustomization("../deploy", &s))
	}
}

// Agents get the flag of idled services if the lab has these.
func TestKustomizationWithUnidle(t *testing.T) {
	s := state{Shape: DefaultShape()}
	const flag = "value: --unidle}"
	if got := kustomization("../deploy", &s); strings.Contains(got, flag) {
		t.Errorf("got %q in\n%s\nwant none", flag, got)
	}
	s.Shape.Unidle = true
	var k struct{ Patches []struct{ Patch string } }
	if err := yaml.Unmarshal([]byte(kustomization("../deploy", &s)), &k); err != nil {
		t.Fatal(err)
	}
	if len(k.Patches) != 2 || !strings.Contains(k.Patches[1].Patch, flag) {
		t.Errorf("got patches %+v, want a second one with %q", k.Patches, flag)
	}
}

// fakeProc has a process for each name, with its program and the end of its status.
func fakeProc(t *testing.T, processes map[string][2]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, p := range processes {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(p[0], filepath.Join(dir, name, "exe")); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name, "status"), []byte("Name:\tx\nNSpid:\t"+p[1]+"\nVmPeak:\t1 kB\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestContainerProcess(t *testing.T) {
	for name, test := range map[string]struct {
		processes map[string][2]string
		want      int
	}{
		"the container's first":       {map[string][2]string{"77": {"/usr/bin/ovsdn-node", "77\t1"}, "78": {"/usr/bin/ovsdn-node", "78\t9"}}, 77},
		"another program":             {map[string][2]string{"77": {"/usr/bin/other", "77\t1"}}, 0},
		"a process of the machine":    {map[string][2]string{"77": {"/usr/bin/ovsdn-node", "77"}}, 0},
		"first of the machine itself": {map[string][2]string{"1": {"/usr/bin/ovsdn-node", "1"}}, 0},
		"what is no process":          {map[string][2]string{"self": {"/usr/bin/ovsdn-node", "77\t1"}}, 0},
		"none":                        {nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := containerProcess(fakeProc(t, test.processes), "ovsdn-node")
			if err != nil || got != test.want {
				t.Errorf("got %d, %v; want %d", got, err, test.want)
			}
		})
	}
	if got, err := containerProcess(filepath.Join(t.TempDir(), "deleted"), "ovsdn-node"); got != 0 || err != nil {
		t.Errorf("of a deleted machine: got %d, %v", got, err)
	}
}

// The last log is that of the youngest pod, and its number counts the starts.
func TestLastLog(t *testing.T) {
	logs := t.TempDir()
	began := time.Now()
	for i, pod := range []string{"ovsdn-node-old_1", "ovsdn-node-new_2", "ovsdn-nodes_3"} {
		dir := filepath.Join(logs, productNamespace+"_"+pod, "node")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		for number := range i + 2 {
			if err := os.WriteFile(filepath.Join(dir, string(rune('0'+number))+".log"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		at := began.Add(time.Duration(i-5) * time.Second)
		if err := os.Chtimes(filepath.Dir(dir), at, at); err != nil {
			t.Fatal(err)
		}
	}
	log, starts, err := lastLog(logs, agentUnit)
	if err != nil || starts != 3 || !strings.HasSuffix(log, "ovsdn-node-new_2/node/2.log") {
		t.Errorf("log %s, %d starts, error %v", log, starts, err)
	}
	if log, starts, err := lastLog(t.TempDir(), agentUnit); log != "" || starts != 0 || err != nil {
		t.Errorf("of a node without an agent: log %s, %d starts, error %v", log, starts, err)
	}
}

// A container that ends repeatedly is reported, one that was killed earlier is not.
func TestFindContainerLoop(t *testing.T) {
	l := &Lab{name: "x", state: state{Shape: DefaultShape(), Nodes: []int{1}}}
	if err := l.findContainerLoop(ControlPlane, map[string]int{}); err != nil {
		t.Errorf("on a machine without containers: %v", err)
	}
	before := map[string]int{agentUnit: 20, controllerUnit: 20}
	if err := l.findContainerLoop("node1", before); err != nil || before[agentUnit] != 0 {
		t.Errorf("a new pod: error %v, counts from %v", err, before)
	}
	before = map[string]int{agentUnit: -maxStarts}
	if err := l.findContainerLoop("node1", before); err == nil || !strings.Contains(err.Error(), "node1: "+agentUnit+" ends again and again") {
		t.Errorf("one that has started too often: error %v", err)
	}
}
