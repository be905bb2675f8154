package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/lab"
)

// addedTable is in the changed agent's pipeline alone, between table 0 and the pods' ingress.
const addedTable = 15

// move is how the numbers of the tables from first to last change.
type move struct{ first, last, by int }

// toTaken gives tables numbers that others had, which no version of the product does (pipeline's TestTables_numbersArePermanent): the worst of all changes for packets
// that the datapath sends back to a table in the moment of the change. toUnused gives them numbers that no table has had.
func toTaken() move  { return move{20, 120, 1} }
func toUnused() move { return move{20, 135, 116} }

// addedSource is the part of the changed pipeline that is new. All else is the product's, with moved tables.
const addedSource = `package pipeline

import (
	"fmt"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

const tableAdded = %d

func (n Node) Static() (State, error) {
	s, err := n.staticOfOld()
	if err != nil {
		return s, err
	}
	for _, f := range s.Flows {
		for i, a := range f.Actions {
			text, err := a.MarshalText()
			if err != nil {
				return s, err
			}
			if f.Table == tableClassify && string(text) == fmt.Sprintf("goto_table:%%d", tablePodIngress) {
				f.Actions[i] = ovs.GotoTable(tableAdded)
			}
		}
	}
	s.Flows = append(s.Flows, &ovs.Flow{Table: tableAdded, Actions: []ovs.Action{ovs.GotoTable(tablePodIngress)}})
	return s, nil
}
`

// buildChanged builds an agent from this source, but with an added table, and with nearly all flows in another table than before. It
// returns the program's path.
func buildChanged(t *testing.T, tables move) string {
	t.Helper()
	dir := t.TempDir()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	source := filepath.Join(root, "pkg/sdn/pipeline")
	overlay := map[string]string{}
	write := func(name, content string) {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		overlay[filepath.Join(source, name)] = path
	}
	change := func(name string, edit func(string) string) {
		content, err := os.ReadFile(filepath.Join(source, name))
		if err != nil {
			t.Fatal(err)
		}
		changed := edit(string(content))
		if changed == string(content) {
			t.Fatalf("%s is not as this test expects it", name)
		}
		write(name, changed)
	}
	number := regexp.MustCompile(`(?m)^(\ttable\w+\s*= )(\d+)`)
	change("tables.go", func(s string) string {
		s = number.ReplaceAllStringFunc(s, func(line string) string {
			m := number.FindStringSubmatch(line)
			table, err := strconv.Atoi(m[2])
			if err != nil {
				t.Fatal(err)
			}
			if table >= tables.first && table <= tables.last {
				table += tables.by
			}
			return m[1] + strconv.Itoa(table)
		})
		return strings.Replace(s, "return map[int]string{", `return map[int]string{tableAdded: "added",`, 1)
	})
	change("node.go", func(s string) string {
		return strings.Replace(s, ") Static() (State, error) {", ") staticOfOld() (State, error) {", 1)
	})
	write("added.go", fmt.Sprintf(addedSource, addedTable))

	return buildOverlay(t, root, overlay)
}

// buildOverlay builds the agent with other contents of the files that are keys of the overlay.
func buildOverlay(t *testing.T, root string, overlay map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	replace, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		t.Fatal(err)
	}
	list, program := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "ovsdn-node")
	if err := os.WriteFile(list, replace, 0o600); err != nil {
		t.Fatal(err)
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-overlay", list, "-o", program, "./cmd/ovsdn-node")
	build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the changed agent: %v\n%s", err, out)
	}
	return program
}

// replaceAgent has a node run another agent until restore is called, at the latest when the test ends. Where kubelet starts agents it is an
// upgrade of all nodes to another image.
func (c *cluster) replaceAgent(t *testing.T, node, program string) (restore func()) {
	t.Helper()
	if c.Shape().Install != lab.Processes {
		return c.upgrade(t, program)
	}
	m := c.Machine(t, node)
	content, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	const at = "/run/ovsdn-node-changed"
	if err := os.WriteFile(filepath.Join(m.Root, at), content, 0o700); err != nil {
		t.Fatal(err)
	}
	args := c.agentArgs(t, node)
	c.Output(t, node, "mount", "--bind", at, args[0])
	restored := false
	restore = func() {
		if restored {
			return
		}
		restored = true
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), fixture.SyncTime)
		defer cancel()
		if _, err := c.TryOutput(ctx, node, "umount", "--lazy", args[0]); err != nil {
			t.Error(err)
		}
		if err := os.Remove(filepath.Join(m.Root, at)); err != nil {
			t.Error(err)
		}
		c.service(t, node, agentService, (*lab.Service).Restart)
	}
	t.Cleanup(restore)
	c.service(t, node, agentService, (*lab.Service).Restart)
	return restore
}

// upgrade installs images with another agent, and returns when all agents are of it.
func (c *cluster) upgrade(t *testing.T, program string) (restore func()) {
	t.Helper()
	restore = sync.OnceFunc(func() {
		if err := c.tryReload(t, lab.Build{}); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(restore)
	c.reload(t, c.buildWith(t, program))
	return restore
}

// buildWith is the lab's own build with another agent.
func (c *cluster) buildWith(t *testing.T, agent string) lab.Build {
	t.Helper()
	return c.buildOf(t, agent, filepath.Join(c.BinDir(), controllerService))
}

// buildOf is the lab's own build with another agent and another controller.
func (c *cluster) buildOf(t *testing.T, agent, controller string) lab.Build {
	t.Helper()
	dir := t.TempDir()
	for name, source := range map[string]string{
		agentService: agent, controllerService: controller, "ovsdn-cni": filepath.Join(c.BinDir(), "ovsdn-cni"), "portmap": filepath.Join(c.BinDir(), "portmap"),
	} {
		if err := os.Symlink(source, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return lab.Build{BinDir: dir}
}

// reload returns when all nodes run that build.
func (c *cluster) reload(t *testing.T, b lab.Build) {
	t.Helper()
	if err := c.tryReload(t, b); err != nil {
		t.Fatal(err)
	}
}

// tryReload works also when the test has ended.
func (c *cluster) tryReload(t *testing.T, b lab.Build) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), fixture.NodeTime)
	defer cancel()
	return c.Reload(ctx, b, t.Logf)
}

// preload loads a build's images into the nodes.
func (c *cluster) preload(t *testing.T, b lab.Build) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), fixture.NodeTime)
	defer cancel()
	if err := c.Preload(ctx, b, t.Logf); err != nil {
		t.Fatal(err)
	}
}

// hasTable waits until the switch has flows in a table, or none.
func (c *cluster) hasTable(t *testing.T, node string, table int, want bool) {
	t.Helper()
	fixture.Eventually(t, fixture.SyncTime, fmt.Sprintf("table %d has flows: %v", table, want), func(ctx context.Context) error {
		flows, err := c.DumpFlows(ctx, node, "-O", "OpenFlow13")
		if err != nil {
			return err
		}
		if has := slices.ContainsFunc(flows, func(f flow) bool { return f.Table == strconv.Itoa(table) }); has != want {
			return fmt.Errorf("it has: %v", has)
		}
		return nil
	})
}
