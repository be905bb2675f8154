package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/apihealth"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/br0"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/cnihandler"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/nodestatus"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// A switch that hangs when the agent starts is reported, and replaces the status of the previous agent.
func TestAwaitFlows_switchHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		a := &agent{cni: cnihandler.New(), reporter: nodestatus.NewReporter(t.Context(), client, "node1"), condition: nodestatus.NewCondition(client.CoreV1().Nodes(), "node1"), apiHealth: &apihealth.Monitor{}}
		defer a.reporter.Stop()
		bridge := ovs.NewFake(br0.Name)
		if err := bridge.EnsureBridge(t.Context(), ovs.Bridge{Name: br0.Name, DatapathType: "netdev"}); err != nil {
			t.Fatal(err)
		}
		bridge.SetUnavailable(true)
		st := flowstore.New(bridge)
		ctx, cancel := context.WithCancel(t.Context())
		var parts sync.WaitGroup
		defer parts.Wait()
		defer cancel()
		parts.Go(func() { _ = st.Run(ctx) })
		written := st.Set(pipeline.Owner{Kind: pipeline.KindNode, Key: "node1"}, pipeline.State{
			Flows: []*ovs.Flow{{Table: 0, Actions: []ovs.Action{ovs.GotoTable(10)}}},
		})
		hangs := errors.New("the switch is stuck")
		awaited := make(chan error, 1)
		parts.Go(func() { awaited <- a.awaitFlows(ctx, written, func() error { return hangs }) })

		synctest.Wait()
		if v := a.condition.Get(); v.Status != corev1.ConditionTrue || v.Message != hangs.Error() {
			t.Errorf("got status %+v, want True with message %q", v, hangs)
		}
		if err := a.cni.NotReady(); !errors.Is(err, hangs) {
			t.Errorf("NotReady: got %v, want %v", err, hangs)
		}
		if err := a.probes()["/readyz"](); err == nil || !strings.Contains(err.Error(), hangs.Error()) {
			t.Errorf("/readyz: got %v, want %v", err, hangs)
		}
		bridge.SetUnavailable(false)
		if err := <-awaited; err != nil {
			t.Error(err)
		}
	})
}

// While the switch refuses flows that an object needs, the agent is not ready; the Node's condition and an Event name the object and the switch's error.
func TestWatchHealth_rejectedFlows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		a := &agent{cni: cnihandler.New(), reporter: nodestatus.NewReporter(t.Context(), client, "node1"), condition: nodestatus.NewCondition(client.CoreV1().Nodes(), "node1"), apiHealth: &apihealth.Monitor{}}
		defer a.reporter.Stop()
		bridge := ovs.NewFake(br0.Name)
		if err := bridge.EnsureBridge(t.Context(), ovs.Bridge{Name: br0.Name, DatapathType: "netdev"}); err != nil {
			t.Fatal(err)
		}
		var accepts atomic.Bool
		bridge.RefuseFlow = func(*ovs.Flow) string {
			if accepts.Load() {
				return ""
			}
			return "OFPBAC_BAD_OUT_PORT"
		}
		st := flowstore.New(bridge)
		ctx, cancel := context.WithCancel(t.Context())
		var parts sync.WaitGroup
		defer parts.Wait()
		defer cancel()
		parts.Go(func() { _ = st.Run(ctx) })
		parts.Go(func() { a.watchHealth(ctx, a.flowsHealthy(st), func() string { return "ready" }) })
		owner := pipeline.Owner{Kind: pipeline.KindPod, Key: "default/web"}
		if err := st.Set(owner, pipeline.State{Flows: []*ovs.Flow{{Table: 0, Actions: []ovs.Action{ovs.GotoTable(10)}}}}).Wait(ctx); err == nil {
			t.Fatal("got no error of the rejected flow")
		}
		time.Sleep(3 * healthPeriod) //nolint:forbidigo // of the bubble
		synctest.Wait()
		message := ""
		if v := a.condition.Get(); v.Status == corev1.ConditionTrue {
			message = v.Message
		}
		for _, want := range []string{owner.String(), "OFPBAC_BAD_OUT_PORT"} {
			if !strings.Contains(message, want) {
				t.Errorf("condition: got message %q, want one with %q", message, want)
			}
		}
		if err := a.probes()["/readyz"](); err == nil || !strings.Contains(err.Error(), message) {
			t.Errorf("/readyz: got %v, want %q", err, message)
		}
		events, err := client.CoreV1().Events("").List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(events.Items) != 1 || events.Items[0].Reason != eventreason.NetworkFlowsRefused || events.Items[0].Message != message {
			t.Errorf("got Events %+v, want one of reason %s with message %q", events.Items, eventreason.NetworkFlowsRefused, message)
		}

		accepts.Store(true)
		time.Sleep(2 * time.Minute) //nolint:forbidigo // of the bubble; longer than the backoff
		synctest.Wait()
		if v := a.condition.Get(); v.Status != corev1.ConditionFalse {
			t.Errorf("got status %+v after the switch accepted the flows, want False", v)
		}
		if got := len(bridge.Flows()); got != 1 {
			t.Errorf("got %d flows, want 1", got)
		}
	})
}

func TestJoinErrors(t *testing.T) {
	bridge, tun, files, firewall := errors.New("no answer from Open vSwitch"), errors.New("no tun0"), errors.New("read-only"), errors.New("no iptables")
	for name, tc := range map[string]struct {
		bridge, tun error
		others      []error
		want        []error
	}{
		"all is well":           {nil, nil, []error{nil, nil}, nil},
		"firewall":              {nil, nil, []error{nil, firewall}, []error{firewall}},
		"tun0":                  {nil, tun, []error{nil, nil}, []error{tun}},
		"the switch, with tun0": {bridge, tun, []error{nil, nil}, []error{bridge}},
		"all":                   {bridge, tun, []error{files, firewall}, []error{bridge, files, firewall}},
		"all but the switch":    {nil, tun, []error{files, firewall}, []error{tun, files, firewall}},
	} {
		if got, want := fmt.Sprint(joinErrors(tc.bridge, tc.tun, tc.others...)), fmt.Sprint(errors.Join(tc.want...)); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}
