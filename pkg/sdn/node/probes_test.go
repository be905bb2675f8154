package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/apihealth"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/cnihandler"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/nodestatus"
	"github.com/ovsdn/ovsdn/test/apitest"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/lab/controlplane"
	"github.com/ovsdn/ovsdn/test/tier"
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
	client := fake.NewClientset()
	a := &agent{cni: cnihandler.New(), condition: nodestatus.NewCondition(client.CoreV1().Nodes(), "node1"), apiHealth: &apihealth.Monitor{}, reporter: nodestatus.NewReporter(t.Context(), client, "node1")}
	defer a.reporter.Stop()
	ready := a.probes()["/readyz"]
	if err := ready(); err == nil {
		t.Error("got ready before CNI requests are served")
	}
	setReady(t, a.cni)
	for _, step := range []struct {
		networkStatus *nodestatus.NetworkStatus
		want          string
	}{{nil, ""}, {nodestatus.Available("all is well"), ""}, {nodestatus.Unavailable(errors.New("no vswitchd")), "no vswitchd"}, {nodestatus.Available("all is well"), ""}} {
		a.condition.Set(step.networkStatus)
		got := ""
		if err := ready(); err != nil {
			got = err.Error()
		}
		if got != step.want {
			t.Errorf("status %+v: got %q, want %q", step.networkStatus, got, step.want)
		}
	}
}

// TestReadyz_writesRefused: the agent's role allows reads only. Its Node's condition is out of date, and only /readyz can report that.
func TestReadyz_writesRefused(t *testing.T) {
	tier.Parallel(t)
	admin := apitest.Start(t)
	kube, ours := apitest.Clients(t, admin)
	agentKube, agentOurs := apitest.Clients(t, apitest.AsServiceAccount(admin, "ovsdn-system", "ovsdn-node"))
	defer apitest.Disconnect(kube, ours)
	defer apitest.Disconnect(agentKube, agentOurs)
	ctx, cancel := context.WithCancel(t.Context())
	must(t, controlplane.Apply(ctx, admin, os.DirFS("../../../deploy/rbac")))
	_, err := kube.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}}, metav1.CreateOptions{})
	must(t, err)
	roles := kube.RbacV1().ClusterRoles()
	full, err := roles.Get(ctx, "ovsdn-node", metav1.GetOptions{})
	must(t, err)
	readOnly := full.DeepCopy()
	readOnly.Rules = slices.DeleteFunc(readOnly.Rules, func(r rbacv1.PolicyRule) bool { return !slices.Contains(r.Verbs, "get") })
	reduced, err := roles.Update(ctx, readOnly, metav1.UpdateOptions{})
	must(t, err)

	a := &agent{
		cni: cnihandler.New(), apiHealth: &apihealth.Monitor{}, reporter: nodestatus.NewReporter(ctx, agentKube, "node1"),
		condition: nodestatus.NewCondition(agentKube.CoreV1().Nodes(), "node1"),
	}
	setReady(t, a.cni)
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.condition.Run(ctx)
	}()
	defer func() { cancel(); <-done; a.reporter.Stop() }()
	want := func(condition, event, ready string) {
		t.Helper()
		await.OK(t, 90*time.Second, func(context.Context) error {
			err := a.probes()["/readyz"]()
			var errs []error
			for _, part := range []struct {
				name string
				err  error
				want string
			}{{"nodes/status", a.condition.Refusal(), condition}, {"events", a.reporter.Refusal(), event}, {"/readyz", err, ready}} {
				if (part.err != nil) != (part.want != "") || part.err != nil && !strings.Contains(part.err.Error(), part.want) {
					errs = append(errs, fmt.Errorf("%s: got %w, want %q", part.name, part.err, part.want))
				}
			}
			return errors.Join(errs...)
		})
	}
	a.condition.Set(nodestatus.Available("pods get addresses"))
	a.reporter.Warn(eventreason.NetworkWaiting, errors.New("the first Event"))
	want(`cannot patch resource "nodes/status"`, `cannot create resource "events"`, "the API server refuses this agent's writes about its Node")
	if err := a.cni.NotReady(); err != nil {
		t.Errorf("CNI requests are refused: %v", err)
	}

	reduced.Rules = full.Rules
	_, err = roles.Update(ctx, reduced, metav1.UpdateOptions{})
	must(t, err)
	want("", `cannot create resource "events"`, "the API server refuses") // the condition is written again, the Event is not
	a.reporter.Warn(eventreason.NetworkSetupFailed, errors.New("the next Event"))
	want("", "", "")
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

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
