package pods

import (
	"testing"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
)

// A pod that asks for what the network ignores is attached, and gets one Event, which a restart of the agent does not repeat.
func TestAdd_reportsUnsupported(t *testing.T) {
	n := newNode(t)
	a, stop := n.start(t)
	limited, plain := n.addPod("limited", newNetns(t)), n.addPod("plain", newNetns(t))
	n.api["default/limited"].Annotations = map[string]string{config.IngressBandwidthAnnotation: "10M"}
	add(t, a, limited)
	add(t, a, plain)
	a.events.want(t, "pod limited: "+eventreason.NotSupported+": the network ignores annotation "+config.IngressBandwidthAnnotation+"=10M")
	stop()
	again, _ := n.start(t)
	if got := a.events.count("pod ") + again.events.count("pod "); got != 1 {
		t.Errorf("got %d Events about pods, want 1:\n%s\nafter a restart:\n%s", got, a.events, again.events)
	}
}
