package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/lab"
	"github.com/ovsdn/ovsdn/test/lab/checkout"
)

// TestDiagnoses has a lab of three nodes. With diagnosisLabVariable it uses an existing lab and does not remove it.
const (
	diagnosisLabVariable = "OVSDN_E2E_DIAGNOSES_LAB"
	diagnosisLab         = "e2e-causes"
	diagnosisHostBits    = 5 // a node has few addresses
)

// diagnosis is a fault, and the command that names its cause to the administrator.
type diagnosis struct {
	name    string
	prepare func(t *testing.T, w *diagnosed) // nil: nothing
	// inject causes the fault. undo removes it; nil: the network repairs it, or it is of objects that are deleted with the namespace.
	inject func(t *testing.T, w *diagnosed) (undo func())
	ask    func(w *diagnosed) []string // arguments of kubectl ovsdn
	words  func(w *diagnosed) []string // of the answer, with which it names the cause
}

// diagnosisGroup has faults that are injected in one mode.
type diagnosisGroup struct {
	mode config.Mode
	all  []diagnosis
}

// diagnosed has pods of two namespaces: those of the fault matrix, and one of another namespace on node2.
type diagnosed struct {
	*faultMatrix
	theirs   string
	stranger pod
}

// TestDiagnoses injects one fault after the other. `kubectl ovsdn status` or `trace` names the cause of each, and not before.
func TestDiagnoses(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: TestCapabilities sees one trace that names its cause, and one status")
	}
	groups := diagnoses()
	documented(t, groups)
	var c *cluster
	if name := os.Getenv(diagnosisLabVariable); name != "" {
		c = openCluster(t, name)
	} else {
		c = ownCluster(t, diagnosisLab, lab.Shape{Nodes: 3, Mode: lab.Multitenant, ServiceProxy: lab.External, HostBits: diagnosisHostBits, Install: fixture.Install()})
	}
	c.deleteEvents(t)
	w := &diagnosed{faultMatrix: &faultMatrix{cluster: c, namespace: c.Namespace(t), node: c.Machine(t, fixture.Node1), subnets: map[string]string{}}}
	w.start(t)
	w.theirs = c.Namespace(t)
	w.stranger = c.Run(t, w.theirs, fixture.Netexec("stranger", fixture.Node2))[0]
	c.restoreMode(t)
	for _, group := range groups {
		c.haveMode(t, group.mode)
		for _, d := range group.all {
			if !t.Run(d.name, func(t *testing.T) { d.test(t, w) }) {
				w.settle(t)
			}
		}
	}
}

// diagnoses returns the faults by the mode in which they are injected.
func diagnoses() []diagnosisGroup {
	return []diagnosisGroup{
		{config.ModeMultitenant, tenantDiagnoses()},
		{config.ModeNetworkPolicy, policyDiagnoses()},
		{config.ModeNetworkPolicy, outsideDiagnoses()},
		{config.ModeNetworkPolicy, objectDiagnoses()},
		{config.ModeNetworkPolicy, hostDiagnoses()},
		{config.ModeNetworkPolicy, programDiagnoses()},
	}
}

// documented reports faults that the table of docs/troubleshooting.md does not have.
func documented(t *testing.T, groups []diagnosisGroup) {
	root, err := checkout.Root(".")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "troubleshooting.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, group := range groups {
		for _, d := range group.all {
			if !strings.Contains(string(page), "\n| "+d.name+" | `") {
				t.Errorf("docs/troubleshooting.md has no row of the fault %q", d.name)
			}
		}
	}
}

// unnamedError is an answer that does not name the cause.
type unnamedError struct {
	words  []string
	answer string
}

func (e *unnamedError) Error() string { return fmt.Sprintf("want %q, got\n%s", e.words, e.answer) }

func (d diagnosis) test(t *testing.T, w *diagnosed) {
	if d.prepare != nil {
		d.prepare(t, w)
	}
	args := d.ask(w)
	named := func(ctx context.Context) error {
		stdout, stderr, err := w.runOVSDN(ctx, args...)
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			return err
		}
		if words := d.words(w); !fixture.ContainsAll(stdout+stderr, words) {
			return &unnamedError{words, stdout + stderr}
		}
		return nil
	}
	command := "kubectl ovsdn " + strings.Join(args, " ")
	fixture.Eventually(t, fixture.SyncTime, command+" without the fault", func(ctx context.Context) error {
		var other *unnamedError
		err := named(ctx)
		if errors.As(err, &other) {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("the answer has %q before the fault", d.words(w))
		}
		return err
	})
	if undo := d.inject(t, w); undo != nil {
		defer undo() // not a cleanup: the test's context would have ended
	}
	fixture.Eventually(t, fixture.ProgramTime, command, named)
}

// deleteEvents deletes the Events of an earlier run in the same lab: status shows those of the last hour.
func (c *cluster) deleteEvents(t *testing.T) {
	t.Helper()
	all := c.Kube.CoreV1().Events(metav1.NamespaceAll)
	list, err := all.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list.Items {
		if err := c.Kube.CoreV1().Events(e.Namespace).Delete(t.Context(), e.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
	}
}

func status(*diagnosed) []string { return []string{"status"} }

func containing(words ...string) func(*diagnosed) []string {
	return func(*diagnosed) []string { return words }
}

func (w *diagnosed) podA() string { return "pod/" + w.namespace + "/" + w.a.Name }

func (w *diagnosed) podC() string { return "pod/" + w.namespace + "/" + w.c.Name }

func (w *diagnosed) strangerPod() string { return "pod/" + w.theirs + "/" + w.stranger.Name }

// traceTo returns the arguments of a trace from pod a by TCP.
func traceTo(destination func(*diagnosed) string, port int) func(*diagnosed) []string {
	return func(w *diagnosed) []string {
		return []string{"trace", w.podA(), destination(w), fmt.Sprintf("--tcp=%d", port)}
	}
}

func toOutside(*diagnosed) string { return lab.OutsideAddr().String() }
