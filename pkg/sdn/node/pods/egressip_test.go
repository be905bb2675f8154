package pods

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	apitypes "k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/inputs"
	"github.com/ovsdn/ovsdn/test/await"
)

// awaitEgressIP waits until flows of pods on the switch load the value as the egress IP; "": none do.
func (n *node) awaitEgressIP(t *testing.T, value string) {
	t.Helper()
	await.OK(t, await.SyncTime, func(context.Context) error {
		var loads []string
		for _, text := range n.flows() {
			if before, _, found := strings.Cut(text, "->NXM_NX_REG11[]"); podFlow.MatchString(text) && found {
				loads = append(loads, before[strings.LastIndex(before, "load:")+len("load:"):])
			}
		}
		slices.Sort(loads)
		if got := strings.Join(slices.Compact(loads), " "); got != value {
			return fmt.Errorf("flows load %q, want %q", got, value)
		}
		return nil
	})
}

// The flows of a pod have the egress IPs of the Namespace that it was attached in. After a restart, a pod whose Namespace is unknown has none of the current one's.
func TestEgressIP_ofTheNamespace(t *testing.T) {
	n, cached := tenants(t)
	a, stop := n.start(t)
	publish := func(uid apitypes.UID, ips inputs.EgressIPs) {
		a.store.Update(flowstore.Update{Publish: []flowstore.Published{{Input: inputs.NamespaceEgressIPs("default", uid), Value: ips}}})
	}
	hundred := inputs.EgressIPs{Asks: true, Usable: []netip.Addr{netip.MustParseAddr("192.0.2.100")}}
	a.publishNamespace("n1", 0x20)
	add(t, a, n.addPod("web", newNetns(t)))
	n.awaitEgressIP(t, "")
	publish("n2", hundred)
	n.awaitEgressIP(t, "")
	publish("n1", hundred)
	n.awaitEgressIP(t, "0xc0000264")
	publish("n1", inputs.EgressIPs{Asks: true})
	n.awaitEgressIP(t, "0xffffffff")
	publish("n1", hundred)
	n.awaitEgressIP(t, "0xc0000264")
	n.end(t, stop)

	delete(n.api, "default/web")
	cached.withheld["web"] = true
	a, stop = n.boot(t)
	defer stop()
	a.publishNamespace("n1", 0x20)
	publish("n1", hundred)
	publish("", hundred)
	if err := a.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.awaitEgressIP(t, "")
}
