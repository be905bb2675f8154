package servicehealth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	fcache "k8s.io/client-go/tools/cache/testing"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/test/await"
)

// listOnly disables the streaming of lists, which the fake source does not implement.
type listOnly struct{ cache.ListerWatcher }

func (listOnly) IsWatchListSemanticsUnSupported() bool { return true }

// runNodeServer runs a NodeServer of node n1, whose Node is in the source.
func (f *fixture) runNodeServer(nodes *fcache.FakeControllerSource) { f.runNodeServerWith(f, nodes) }

func (f *fixture) runNodeServerWith(rules Rules, nodes *fcache.FakeControllerSource) {
	f.Cleanup(nodes.Shutdown)
	informer := cache.NewSharedIndexInformer(listOnly{nodes}, &corev1.Node{}, 0, cache.Indexers{})
	n, err := NewNodeServer(NodeServerOptions{Address: DefaultAddress, NodeName: "n1", Nodes: informer, Flows: f, Rules: rules, Events: f})
	if err != nil {
		f.Fatal(err)
	}
	n.listen = f.listen
	f.start(func(ctx context.Context) { informer.RunWithContext(ctx) })
	f.start(n.Run)
}

// state is an answer of the NodeServer.
type state struct {
	LastUpdated, CurrentTime time.Time
	NodeEligible             *bool
}

// expectHealth waits until both paths have a status, and /healthz reports whether the node is eligible.
func (f *fixture) expectHealth(when string, healthz, livez int, eligible bool) {
	f.Helper()
	await.OK(f, timeout, func(ctx context.Context) error {
		health, err := f.ask(ctx, "/healthz", healthz)
		if err != nil {
			return fmt.Errorf("%s: %w", when, err)
		}
		if health.NodeEligible == nil || *health.NodeEligible != eligible {
			return fmt.Errorf("%s: got nodeEligible %v, want %t", when, health.NodeEligible, eligible)
		}
		live, err := f.ask(ctx, "/livez", livez)
		if err == nil && live.NodeEligible != nil {
			err = errors.New("/livez has nodeEligible")
		}
		return err
	})
}

// ask sends a request, and checks the status and the times of the answer: lastUpdated is the current time of a healthy node.
func (f *fixture) ask(ctx context.Context, path string, status int) (s state, err error) {
	r, err := f.get(ctx, http.MethodGet, DefaultAddress, path)
	if err != nil {
		return s, err
	}
	if r.status != status {
		return s, fmt.Errorf("%s: got %d %s, want %d", path, r.status, r.body, status)
	}
	if err := json.Unmarshal([]byte(r.body), &s); err != nil {
		return s, fmt.Errorf("%s: %w", r.body, err)
	}
	healthy, updated := status == http.StatusOK, f.Statistics().LastWrite
	if s.CurrentTime.IsZero() || healthy && !s.LastUpdated.Equal(s.CurrentTime) {
		return s, fmt.Errorf("%s: got %s, want the current time in lastUpdated", path, r.body)
	}
	if live := path == "/livez"; live && !healthy && !s.LastUpdated.Equal(updated) {
		return s, fmt.Errorf("%s: got %s, want lastUpdated %s", path, r.body, updated)
	}
	if r.header.Get("Content-Type") != "application/json" || r.header.Get("X-Content-Type-Options") != "nosniff" {
		return s, fmt.Errorf("%s: got headers %v", path, r.header)
	}
	return s, nil
}

func newNode(change func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	if change != nil {
		change(n)
	}
	return n
}

// /healthz follows the Node, /livez does not.
func TestNodeServer_node(t *testing.T) {
	f := newFixture(t)
	nodes := fcache.NewFakeControllerSource()
	nodes.Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}})
	f.runNodeServer(nodes)
	f.expectHealth("without a Node", 503, 200, false)
	nodes.Add(newNode(nil))
	f.expectHealth("with a Node", 200, 200, true)
	for name, change := range map[string]func(*corev1.Node){
		"taint of the autoscaler": func(n *corev1.Node) {
			n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnschedulable}, {Key: "ToBeDeletedByClusterAutoscaler", Value: "1"}}
		},
		"deletion timestamp": func(n *corev1.Node) { n.DeletionTimestamp = &metav1.Time{Time: time.Now()} },
	} {
		nodes.Modify(newNode(change))
		f.expectHealth(name, 503, 200, false)
		nodes.Modify(newNode(func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnschedulable}} }))
		f.expectHealth("after "+name, 200, 200, true)
	}
	nodes.Delete(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}})
	f.expectHealth("another Node deleted", 200, 200, true)
	nodes.Delete(newNode(nil))
	f.expectHealth("deleted", 503, 200, false)
	nodes.Add(newNode(nil))
	f.expectHealth("registered again", 200, 200, true)
	if r, err := f.get(t.Context(), http.MethodGet, DefaultAddress, "/"); err != nil || r.status != http.StatusNotFound {
		t.Errorf("another path: got %d, %v, want 404", r.status, err)
	}
}

// Both paths follow the flows.
func TestNodeServer_flows(t *testing.T) {
	f := newFixture(t)
	nodes := fcache.NewFakeControllerSource()
	nodes.Add(newNode(nil))
	f.runNodeServer(nodes)
	written := time.Now().Add(-time.Hour)
	for _, tc := range []struct {
		name   string
		flows  flowstore.Statistics
		status int
	}{
		{"in sync", flowstore.Statistics{LastWrite: written}, 200},
		{"a new change", flowstore.Statistics{LastWrite: written, PendingSince: time.Now()}, 200},
		{"an old change", flowstore.Statistics{LastWrite: written, PendingSince: time.Now().Add(-maxPending)}, 503},
		{"no flows yet", flowstore.Statistics{}, 503},
	} {
		f.setStatistics(tc.flows)
		f.expectHealth(tc.name, tc.status, tc.status, true)
	}
}

// Both paths follow the host's rules: the node serves no external address before they are written, nor without nftables.
func TestNodeServer_rules(t *testing.T) {
	for name, rules := range map[string]func(*fixture) Rules{
		"nftables":         func(f *fixture) Rules { return f },
		"without nftables": func(*fixture) Rules { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.setSynced(false)
			nodes := fcache.NewFakeControllerSource()
			nodes.Add(newNode(nil))
			f.runNodeServerWith(rules(f), nodes)
			f.expectHealth("before the first rules", 503, 503, true)
			f.setSynced(true)
			status := http.StatusOK
			if rules(f) == nil {
				status = http.StatusServiceUnavailable
			}
			f.expectHealth("rules written", status, status, true)
		})
	}
}

// A port in use is reported once, and opened when it is free; a failure after that is reported again.
func TestNodeServer_portInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		attempts, events := 0, &fixture{T: t}
		inUse := &net.OpError{Op: "listen", Net: "tcp", Err: unix.EADDRINUSE}
		n := &NodeServer{
			address: DefaultAddress, events: events, sync: newNodeSync(events, nil), eligibility: &eligibility{},
			listen: func(context.Context, string) (net.Listener, error) {
				if attempts++; attempts != 3 {
					return nil, inUse
				}
				l := &failingListener{failed: make(chan struct{})}
				close(l.failed)
				return l, nil
			},
		}
		ctx, stop := context.WithTimeout(t.Context(), 4*listenInterval+time.Second)
		defer stop()
		var logs []string
		n.Run(klog.NewContext(ctx, funcr.New(func(_, args string) { logs = append(logs, args) }, funcr.Options{})))
		if attempts != 5 {
			t.Errorf("got %d attempts, want 5, one each %s", attempts, listenInterval)
		}
		const port, option = "end the program that uses the port (ss -lntp 'sport = :10256' on the node)", ", or set --service-healthz-bind-address"
		want := []struct{ text, action string }{
			{"address already in use", port + option}, {"no more connections", "the agent tries again" + option}, {"address already in use", port + option},
		}
		if len(events.events) != len(want) || len(logs) != len(want) {
			t.Fatalf("got Events %q and logs %q, want %d of each", events.events, logs, len(want))
		}
		for i, w := range want {
			if !strings.Contains(logs[i], w.text) {
				t.Errorf("got log %q, want %q", logs[i], w.text)
			}
			if got := events.events[i]; !strings.HasPrefix(got, "HealthCheckPortFailed ") || !strings.Contains(got, w.text+"; "+w.action) {
				t.Errorf("got Event %q, want HealthCheckPortFailed with %q and %q", got, w.text, w.action)
			}
		}
	})
}

// failingListener fails once failed is closed.
type failingListener struct {
	net.Listener
	failed chan struct{}
}

func (l *failingListener) Accept() (net.Conn, error) {
	<-l.failed
	return nil, errors.New("no more connections")
}

func (l *failingListener) Close() error { return nil }
