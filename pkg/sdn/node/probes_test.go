package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/apihealth"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/cnihandler"
	"github.com/ovsdn/ovsdn/test/await"
)

// A container with a bind mount of a deleted directory does not see the directory that the host creates again.
func TestCheckMounted_directoryRecreated(t *testing.T) {
	dir := t.TempDir()
	host, container := filepath.Join(dir, "host"), filepath.Join(dir, "container")
	probe := func() error { return checkMounted(container) }
	failed := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its mounts
		failed <- errors.Join(
			probe(), // the directory does not exist
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
		t.Errorf("got %v, want an error with %s", err, container)
	}
}

func TestReadyz_nodeCondition(t *testing.T) {
	a := &agent{cni: cnihandler.New(), condition: newCondition(fake.NewClientset().CoreV1().Nodes(), "node1"), apiHealth: &apihealth.Monitor{}, reporter: &reporter{refused: &refusal{}}}
	ready := a.probes()["/readyz"]
	if err := ready(); err == nil {
		t.Error("got ready before CNI requests are served")
	}
	setReady(t, a.cni)
	for _, step := range []struct {
		networkStatus *networkStatus
		want          string
	}{{nil, ""}, {available("all is well"), ""}, {unavailable(errors.New("no vswitchd")), "no vswitchd"}, {available("all is well"), ""}} {
		a.condition.set(step.networkStatus)
		got := ""
		if err := ready(); err != nil {
			got = err.Error()
		}
		if got != step.want {
			t.Errorf("status %+v: got %q, want %q", step.networkStatus, got, step.want)
		}
	}
}

// setReady has the handler serve until the test ends.
func setReady(t *testing.T, h *cnihandler.Handler) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- h.Serve(ctx, nil) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	await.OK(t, 90*time.Second, func(context.Context) error { return h.NotReady() })
}
