package pods

import (
	"testing"

	networkv1 "github.com/openshift/api/network/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
)

// A pod that asks for what the network ignores is attached, and gets one Event, which a restart of the agent does not repeat.
func TestAdd_reportsUnsupported(t *testing.T) {
	n := newNode(t)
	a, stop := n.start(t)
	asking, plain := n.addPod("asking", newNetns(t)), n.addPod("plain", newNetns(t))
	n.api["default/asking"].Annotations = map[string]string{networkv1.AssignMacvlanAnnotation: "true"}
	add(t, a, asking)
	add(t, a, plain)
	a.events.want(t, "pod asking: "+eventreason.NotSupported+": the network ignores annotation "+networkv1.AssignMacvlanAnnotation+"=true")
	stop()
	again, _ := n.start(t)
	if got := a.events.count("pod ") + again.events.count("pod "); got != 1 {
		t.Errorf("got %d Events about pods, want 1:\n%s\nafter a restart:\n%s", got, a.events, again.events)
	}
}
