package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/apihealth"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/cnihandler"
	"github.com/ovsdn/ovsdn/test/apitest"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/lab/controlplane"
	"github.com/ovsdn/ovsdn/test/tier"
)

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
		cni: cnihandler.New(), apiHealth: &apihealth.Monitor{}, reporter: newReporter(ctx, agentKube, "node1"),
		condition: newCondition(agentKube.CoreV1().Nodes(), "node1"),
	}
	setReady(t, a.cni)
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.condition.run(ctx)
	}()
	defer func() { cancel(); <-done; a.reporter.stop() }()
	want := func(condition, event, ready string) {
		t.Helper()
		await.OK(t, 90*time.Second, func(context.Context) error {
			err := a.probes()["/readyz"]()
			var errs []error
			for _, part := range []struct {
				name string
				err  error
				want string
			}{{"nodes/status", a.condition.refused.get(0), condition}, {"events", a.reporter.refused.get(0), event}, {"/readyz", err, ready}} {
				if (part.err != nil) != (part.want != "") || part.err != nil && !strings.Contains(part.err.Error(), part.want) {
					errs = append(errs, fmt.Errorf("%s: got %w, want %q", part.name, part.err, part.want))
				}
			}
			return errors.Join(errs...)
		})
	}
	a.condition.set(available("pods get addresses"))
	a.reporter.warn(eventreason.NetworkWaiting, errors.New("the first Event"))
	want(`cannot patch resource "nodes/status"`, `cannot create resource "events"`, "the API server refuses this agent's writes about its Node")
	if err := a.cni.NotReady(); err != nil {
		t.Errorf("CNI requests are refused: %v", err)
	}

	reduced.Rules = full.Rules
	_, err = roles.Update(ctx, reduced, metav1.UpdateOptions{})
	must(t, err)
	want("", `cannot create resource "events"`, "the API server refuses") // the condition is written again, the Event is not
	a.reporter.warn(eventreason.NetworkSetupFailed, errors.New("the next Event"))
	want("", "", "")
}

func TestRefusal(t *testing.T) {
	forbidden := fmt.Errorf("write: %w", apierrors.NewForbidden(schema.GroupResource{Resource: "events"}, "", nil))
	unknown := apierrors.NewUnauthorized("the token has expired")
	for name, tc := range map[string]struct {
		answers []error
		refused bool
	}{
		"none":                        {nil, false},
		"accepted":                    {[]error{nil}, false},
		"forbidden":                   {[]error{forbidden}, true},
		"unauthorized":                {[]error{unknown}, true},
		"accepted again":              {[]error{forbidden, nil}, false},
		"a conflict is no refusal":    {[]error{apierrors.NewConflict(schema.GroupResource{}, "", nil)}, false},
		"a failure changes nothing":   {[]error{forbidden, apierrors.NewServiceUnavailable("")}, true},
		"no connection is no refusal": {[]error{errors.New("connection refused")}, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &refusal{}
				for _, err := range tc.answers {
					r.note(err)
				}
				if got := r.get(refusedEventTime); (got != nil) != tc.refused {
					t.Errorf("got %v, want a refusal: %t", got, tc.refused)
				}
				<-time.After(refusedEventTime + time.Second)
				if got := r.get(refusedEventTime); got != nil {
					t.Errorf("got %v after %s", got, refusedEventTime)
				}
			})
		})
	}
}

// A tenant's quota, or the end of its namespace, may refuse Events about pods.
func TestRefusal_eventsAboutPods(t *testing.T) {
	s := &refusalSink{refused: &refusal{}}
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "events"}, "", nil)
	for _, namespace := range []string{"tenant", "default"} {
		s.note(&corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}, InvolvedObject: corev1.ObjectReference{Kind: "Pod"}}, forbidden)
	}
	if err := s.refused.get(0); err != nil {
		t.Errorf("got %v, want nil", err)
	}
}
