package lab

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/test/lab/checkout"
	"github.com/ovsdn/ovsdn/test/lab/components"
)

// testTimeout is for everything that a test does with a lab, except for the first build of the components.
const testTimeout = 15 * time.Minute

// needRoot skips, builds what a lab needs, and takes the lab down when the test ends, whatever happened.
func needRoot(t *testing.T, name string) (binDir string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	binDir = t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", binDir+"/", "github.com/ovsdn/ovsdn/cmd/ovsdn-lab")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build ovsdn-lab: %v\n%s", err, output)
	}
	root, err := checkout.Root(".")
	if err != nil {
		t.Fatal(err)
	}
	// On a new machine it takes minutes, which is not the lab's fault.
	if _, err := components.Build(t.Context(), components.Options{SourceDir: root, Progress: t.Logf}); err != nil {
		t.Fatal(err)
	}
	down(t, name)
	before := fabricLinks(t)
	t.Cleanup(func() {
		down(t, name)
		for link := range fabricLinks(t) {
			if !before[link] {
				t.Errorf("left behind: interface %s", link)
			}
		}
	})
	return binDir
}

// fabricLinks returns the interfaces of this host's own network that a lab may have made by mistake: their place is the fabric's namespace. Their
// names do not have the lab's, so that only those that the test found first are known to be of others.
func fabricLinks(t *testing.T) map[string]bool {
	t.Helper()
	links, err := os.ReadDir("/sys/class/net")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, link := range links {
		if link.Name() == fabricBridge || strings.HasPrefix(link.Name(), portName("")) {
			found[link.Name()] = true
		}
	}
	return found
}

// down works after the test's own context has ended.
func down(t *testing.T, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if _, err := Down(ctx, name, t.Logf); err != nil {
		t.Errorf("down: %v", err)
	}
	for _, left := range leftovers(t, name) {
		t.Errorf("left behind: %s", left)
	}
}

// leftovers lists what there is of the lab anywhere on this machine.
func leftovers(t *testing.T, name string) []string {
	t.Helper()
	var found []string
	if entries, err := os.ReadDir(filepath.Join(stateRoot, name)); err == nil {
		found = append(found, fmt.Sprintf("folder with %d entries", len(entries)))
	}
	for _, root := range []string{"/sys/fs/cgroup", "/run/netns"} {
		_ = filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
			// Other groups are created and deleted in the meantime.
			if err == nil && isOfLab(path, name) {
				found = append(found, path)
			}
			return nil
		})
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if isOfLab(line, name) {
			found = append(found, "mount "+line)
		}
	}
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, process := range processes {
		// A zombie waits only for the host's own PID 1.
		if status, err := os.ReadFile(filepath.Join(process, "status")); err != nil || bytes.Contains(status, []byte("State:\tZ")) {
			continue
		}
		for _, file := range []string{"cmdline", "cgroup", "mountinfo"} {
			// Processes end while we look.
			content, err := os.ReadFile(filepath.Join(process, file))
			if err == nil && isOfLab(string(content), name) {
				command, _ := os.ReadFile(filepath.Join(process, "cmdline"))
				found = append(found, fmt.Sprintf("process %s (%q), by its %s", process, bytes.ReplaceAll(command, []byte{0}, []byte{' '}), file))
				break
			}
		}
	}
	return found
}

func isOfLab(text, name string) bool {
	for _, mark := range []string{stateRoot + "/" + name, cgroupRoot + "/" + name, "ovsdn-" + name + "-"} {
		if _, after, ok := strings.Cut(text, mark); ok && (after == "" || strings.ContainsAny(after[:1], "/ \n\x00") || strings.HasSuffix(mark, "-")) {
			return true
		}
	}
	return false
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

func TestControlPlaneOnly(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: a lab of its own")
	}
	const name = "t-cp"
	binDir := needRoot(t, name)
	ctx := testContext(t)
	o := Options{Name: name, Shape: Shape{ControlPlaneOnly: true}, BinDir: binDir, Progress: t.Logf}
	l, err := Up(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	client, err := l.Client()
	if err != nil {
		t.Fatal(err)
	}
	// The controller manager makes it.
	waitFor(t, "the default service account", func() error {
		_, err := client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	if stdout, stderr, err := l.Kubectl(ctx, "get", "namespace", "default", "-o", "name"); err != nil || stdout != "namespace/default\n" {
		t.Errorf("kubectl: %q, %q, %v", stdout, stderr, err)
	}
	if stdout, _, err := l.Exec(ctx, ControlPlane, "hostname"); err != nil || stdout != ControlPlane+"\n" {
		t.Errorf("exec hostname: %q, %v", stdout, err)
	}

	// A dead control plane comes back with what it knew, at the same port.
	control, err := l.control(ControlPlane)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := control.PID(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "exec to fail in a machine whose first process was killed", func() error { // a signal takes its time
		if _, _, err := l.Exec(ctx, ControlPlane, "true"); err == nil {
			return errors.New("it succeeds")
		}
		return nil
	})
	if _, err := Up(ctx, o); err != nil {
		t.Fatalf("repair: %v", err)
	}
	if _, err := client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{}); err != nil {
		t.Errorf("after the repair: %v", err)
	}

	o.HostBits = 8
	if _, err := Up(ctx, o); err == nil || !strings.Contains(err.Error(), "--host-bits is 9, not 8") {
		t.Errorf("up with other options: %v", err)
	}
}

func TestDownOfNothing(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	if existed, err := Down(t.Context(), "t-nothing", t.Logf); existed || err != nil {
		t.Errorf("down of nothing: %v, %v", existed, err)
	}
	if _, err := Down(t.Context(), "../x", t.Logf); err == nil {
		t.Error("down of a bad name succeeds")
	}
}

// TestKilledUp kills up at each of its steps. Down must remove what remains.
func TestKilledUp(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: a lab of its own")
	}
	const name = "t-kill"
	binDir := needRoot(t, name)
	ctx := testContext(t)
	for _, step := range []string{"components", "fabric", Outside, "node1", "control plane"} {
		t.Run(step, func(t *testing.T) {
			up := exec.CommandContext(ctx, filepath.Join(binDir, selfProgram), "up", "--name", name)
			lines, err := up.StderrPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := up.Start(); err != nil {
				t.Fatal(err)
			}
			for reader := bufio.NewScanner(lines); reader.Scan(); {
				if strings.Contains(reader.Text(), "s  "+step+" (") {
					if err := up.Process.Kill(); err != nil {
						t.Error(err)
					}
					break
				}
			}
			if err := up.Wait(); err == nil {
				t.Errorf("up ended before it could be killed in step %q", step)
			}
			if names, err := All(); err != nil || !slices.Contains(names, name) {
				t.Errorf("the labs of this machine are %v, %v, want %s among them", names, err, name)
			}
			down(t, name)
		})
	}
}

func TestNodesOfALab(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: a lab of its own")
	}
	const name = "t-nodes"
	binDir := needRoot(t, name)
	ctx := testContext(t)
	o := Options{Name: name, Shape: Shape{Nodes: 1, ServiceProxy: External, Install: Processes}, BinDir: binDir, Progress: t.Logf}
	l, err := Up(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	client, err := l.Client()
	if err != nil {
		t.Fatal(err)
	}

	checkExec(ctx, t, l)

	// Processes without a waiter end with the lab, see needRoot.
	if _, stderr, err := l.Exec(ctx, Outside, "sh", "-c", "sleep 4322 >/dev/null 2>&1 &"); err != nil {
		t.Errorf("start a process outside: %v: %s", err, stderr)
	}

	// Open vSwitch and the node's address survive each other's restarts.
	vswitchd, err := l.Service("node1", "ovs-vswitchd")
	if err != nil {
		t.Fatal(err)
	}
	if err := vswitchd.Kill(ctx); err != nil {
		t.Fatal(err)
	}
	waitFor(t, "ping after ovs-vswitchd was killed", func() error {
		_, _, err := l.Exec(ctx, Outside, "busybox", "ping", "-c", "1", "-W", "1", "172.31.0.11")
		return err
	})

	added, err := l.AddNode(ctx, t.Logf)
	if err != nil || added != "node2" {
		t.Fatalf("add-node: %q, %v", added, err)
	}
	if err := l.RemoveNode(ctx, "node1", t.Logf); err != nil {
		t.Fatal(err)
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil || len(nodes.Items) != 1 || nodes.Items[0].Name != "node2" {
		t.Errorf("nodes after node1 was removed: %v, %v", nodes, err)
	}
	if err := l.RemoveNode(ctx, "node1", t.Logf); err == nil {
		t.Error("node1 was removed twice")
	}

	checkRepair(ctx, t, l, o)
}

// checkExec runs commands on a node and outside.
func checkExec(ctx context.Context, t *testing.T, l *Lab) {
	t.Helper()
	var exit *exec.ExitError
	if _, stderr, err := l.Exec(ctx, "node1", "sh", "-c", "echo oops >&2; exit 7"); !errors.As(err, &exit) || exit.ExitCode() != 7 || stderr != "oops\n" {
		t.Errorf("exec exit 7: %q, %v", stderr, err)
	}
	// The node's address answers on the fabric, from the bridge that owns it.
	if stdout, stderr, err := l.Exec(ctx, Outside, "busybox", "ping", "-c", "3", "-W", "5", "172.31.0.11"); err != nil {
		t.Errorf("ping node1 from outside: %v\n%s%s", err, stdout, stderr)
	}
	if stdout, stderr, err := l.Exec(ctx, "node1", "busybox", "ping", "-c", "3", "-W", "5", OutsideAddr().String()); err != nil {
		t.Errorf("ping outside from node1: %v\n%s%s", err, stdout, stderr)
	}
	canceled, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	if _, _, err := l.Exec(canceled, "node1", "sleep", "4321"); err == nil {
		t.Error("a command outlives its context")
	}
	if stdout, _, err := l.Exec(ctx, "node1", "pgrep", "-f", "^sleep 4321"); err == nil {
		t.Errorf("the process of a canceled command is still there: %s", stdout)
	}
}

// checkRepair ends node2, which comes back with its disks.
func checkRepair(ctx context.Context, t *testing.T, l *Lab, o Options) {
	t.Helper()
	if _, stderr, err := l.Exec(ctx, "node2", "touch", "/var/lib/kubelet/mark"); err != nil {
		t.Fatalf("%v: %s", err, stderr)
	}
	control, err := l.control("node2")
	if err != nil {
		t.Fatal(err)
	}
	pid, err := control.PID(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if _, err := Up(ctx, o); err != nil {
		t.Fatalf("repair: %v", err)
	}
	if _, stderr, err := l.Exec(ctx, "node2", "test", "-e", "/var/lib/kubelet/mark"); err != nil {
		t.Errorf("the disk is another one: %v: %s", err, stderr)
	}
}

// The error names an agent that can't run, and comes soon.
func TestAgentThatEnds(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: a lab of its own")
	}
	const name = "t-agent"
	binDir := needRoot(t, name)
	script := "#!/bin/sh\necho no such interface: eth9\nexit 1\n"
	if err := os.WriteFile(filepath.Join(binDir, agentUnit), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(testContext(t), patience/2)
	defer cancel()
	_, err := Up(ctx, Options{Name: name, Shape: Shape{Nodes: 1, ServiceProxy: External, Install: Processes}, BinDir: binDir, Progress: t.Logf})
	if err == nil || !strings.Contains(err.Error(), "no such interface: eth9") {
		t.Errorf("up: %v", err)
	}
}

func waitFor(t *testing.T, what string, try func() error) {
	t.Helper()
	deadline := time.After(time.Minute)
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := try()
		if err == nil {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("%s: %v", what, err)
		case <-ticker.C:
		}
	}
}
