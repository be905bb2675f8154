package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/store"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// A switch that hangs when the agent is started is told, and what was said before the agent was is not left to stand.
func TestSwitchThatDoesNotTakeTheFirstFlowsIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		a := &agent{door: newDoor(), reporter: newReporter(t.Context(), client, "node1"), condition: newCondition(client.CoreV1().Nodes(), "node1"), reach: &reach{}}
		defer a.reporter.stop()
		bridge := ovs.NewFake(bridgeName)
		if err := bridge.EnsureBridge(t.Context(), ovs.Bridge{Name: bridgeName, DatapathType: "netdev"}); err != nil {
			t.Fatal(err)
		}
		bridge.SetUnavailable(true)
		st := store.New(bridge)
		ctx, cancel := context.WithCancel(t.Context())
		var parts sync.WaitGroup
		defer parts.Wait()
		defer cancel()
		parts.Go(func() { _ = st.Run(ctx) })
		written := st.Set(pipeline.Owner{Kind: pipeline.KindNode, Key: "node1"}, pipeline.State{
			Flows: []*ovs.Flow{{Table: 0, Actions: []ovs.Action{ovs.GotoTable(10)}}},
		})
		told := errors.New("the switch is stuck")
		awaited := make(chan error, 1)
		parts.Go(func() { awaited <- a.awaitFlows(ctx, written, func() error { return told }) })

		<-a.condition.due
		synctest.Wait()
		if v := a.condition.get(); v.status != corev1.ConditionTrue || v.message != told.Error() {
			t.Errorf("the condition is to be %+v", v)
		}
		if err := a.door.closed(); !errors.Is(err, told) {
			t.Errorf("requests are told %v", err)
		}
		if err := a.probes()["/readyz"](); err == nil || !strings.Contains(err.Error(), told.Error()) {
			t.Errorf("kubelet is told %v", err)
		}
		bridge.SetUnavailable(false)
		if err := <-awaited; err != nil {
			t.Error(err)
		}
	})
}

func TestFaultsOfThePartsAreToldOnce(t *testing.T) {
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
		if got, want := fmt.Sprint(joinFaults(tc.bridge, tc.tun, tc.others...)), fmt.Sprint(errors.Join(tc.want...)); got != want {
			t.Errorf("%s: told %q, want %q", name, got, want)
		}
	}
}
