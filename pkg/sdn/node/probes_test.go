package node

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/kubernetes/fake"
)

// A folder that is bound into a container is not that which its host makes anew.
func TestFolderThatTheHostHasRemovedFailsTheProbe(t *testing.T) {
	dir := t.TempDir()
	host, container := filepath.Join(dir, "host"), filepath.Join(dir, "container")
	probe := func() error { return checkMounted(container) }
	failed := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its mounts
		failed <- errors.Join(
			probe(), // there is no such folder
			unix.Unshare(unix.CLONE_NEWNS),
			unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
			os.Mkdir(host, 0o755), os.Mkdir(container, 0o755),
			unix.Mount(host, container, "", unix.MS_BIND, ""),
			probe(),
			os.Remove(host), os.Mkdir(host, 0o755),
		)
		failed <- probe()
	}()
	if err := <-failed; err != nil {
		t.Fatal(err)
	}
	if err := <-failed; err == nil || !strings.Contains(err.Error(), container) {
		t.Errorf("it says %v", err)
	}
}

// Pods can be set up, it seems, but not for long: kubelet is told what the Node's condition says.
func TestAgentIsReadyWhenPodsCanBeSetUpAndTheNetworkIsWell(t *testing.T) {
	a := &agent{door: newDoor(), condition: newCondition(fake.NewClientset().CoreV1().Nodes(), "node1"), reach: &reach{}, reporter: &reporter{refused: &refusal{}}}
	ready := a.probes()["/readyz"]
	if err := ready(); err == nil {
		t.Error("it is ready before the door is open")
	}
	a.door.inside = &room{}
	for _, step := range []struct {
		verdict *verdict
		want    string
	}{{nil, ""}, {available("all is well"), ""}, {unavailable(errors.New("no vswitchd")), "no vswitchd"}, {available("all is well"), ""}} {
		a.condition.set(step.verdict)
		got := ""
		if err := ready(); err != nil {
			got = err.Error()
		}
		if got != step.want {
			t.Errorf("with %+v it says %q", step.verdict, got)
		}
	}
}
