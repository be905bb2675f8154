package podflows_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	corev1 "k8s.io/api/core/v1"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/inputs"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/podflows"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/pkg/sdn/policy"
	"github.com/ovsdn/ovsdn/test/await"
)

func TestMain(m *testing.M) { await.VerifyTestMain(m) }

// handler records its calls in a journal, and fails.
type handler struct {
	name    string
	store   *flowstore.Store
	journal *[]string
	err     error
}

func (h handler) Attach(_ context.Context, _ pipeline.Owner, key policy.PodKey, pod pipeline.Pod, _ *corev1.Pod) func(context.Context) error {
	*h.journal = append(*h.journal, h.name+" attach "+key.Namespace+" "+pod.Addrs[0].String())
	return func(context.Context) error { return h.err }
}

func (h handler) Detach(owner pipeline.Owner) func(context.Context) error {
	*h.journal = append(*h.journal, fmt.Sprintf("%s detach, has flows: %t", h.name, h.store.Compiled(owner) != nil))
	return func(context.Context) error { return h.err }
}

// noPods is a cache and a sink of Events.
type noPods struct{}

func (noPods) Cached(string, string) *corev1.Pod { return nil }

func (noPods) WarnPod(sandbox.Pod, string, string) {}

// All handlers are called, in their order, before the pod's own flows are set and after they are removed, and the caller gets the errors of all.
func TestFlows_handlers(t *testing.T) {
	bridge := ovs.NewFake("br0")
	if err := bridge.EnsureBridge(t.Context(), ovs.Bridge{Name: "br0", DatapathType: "netdev"}); err != nil {
		t.Fatal(err)
	}
	store := flowstore.New(bridge)
	store.Source(inputs.KindPodPolicies, flowstore.Source{Default: pipeline.PodPolicies{}})
	store.Source(inputs.KindEgressFirewall, flowstore.Source{Default: pipeline.EgressFirewallID(0)})
	store.Source(inputs.KindEgressIPs, flowstore.Source{Default: inputs.EgressIPs{}})
	go func() { _ = store.Run(t.Context()) }() // ends with the test
	var journal []string
	firewall, policies := errors.New("no firewall"), errors.New("no policies")
	flows := podflows.New(podflows.Dependencies{
		Store: store, Cache: noPods{}, Events: noPods{},
		Compile: func(pipeline.Pod) (s pipeline.State) {
			journal = append(journal, "compile")
			s.Flows = []*ovs.Flow{{Table: 20, Priority: 100, Actions: []goovs.Action{goovs.Drop()}}}
			return s
		},
		Handlers: []podflows.PodHandler{handler{"firewall", store, &journal, firewall}, handler{"policies", store, &journal, policies}},
	})
	vnid := config.VNID(10)
	pod := sandbox.Pod{Attachment: sandbox.Attachment{Sandbox: "a"}, Namespace: "shop", VNID: &vnid, Addrs: []netip.Addr{netip.MustParseAddr("10.128.0.5")}}
	wantErrors := func(err error) {
		t.Helper()
		if !errors.Is(err, firewall) || !errors.Is(err, policies) {
			t.Errorf("got %v, want the errors of both handlers", err)
		}
	}
	wantErrors(flows.Set(t.Context(), pod, nil))
	wantErrors(flows.SetAsync(t.Context(), pod, nil)(t.Context()))
	want := []string{"firewall attach shop 10.128.0.5", "policies attach shop 10.128.0.5", "compile"}
	if !slices.Equal(journal, slices.Concat(want, want)) {
		t.Errorf("got calls %q, want twice %q", journal, want)
	}
	journal = nil
	wantErrors(flows.Remove(pod.Attachment)(t.Context()))
	if want := []string{"firewall detach, has flows: false", "policies detach, has flows: false"}; !slices.Equal(journal, want) {
		t.Errorf("got calls %q, want %q", journal, want)
	}
}
