package diagnosticsserver

import (
	"net/http"
	"slices"
	"strings"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/inputs"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// selection is the set of wanted flows.
type selection struct {
	all     bool
	owners  map[pipeline.Owner]bool
	cookies map[uint64]bool // of the owners, for flows that no owner has
	rules   map[uint32]bool // conjunction IDs; nil: flows of all owners above
}

// chooses reports whether flows of the owner may be wanted.
func (s selection) chooses(o pipeline.Owner) bool {
	return s.all || s.owners[o] || s.rules != nil && o.Kind == pipeline.KindPolicy
}

// wants reports whether a flow of a chosen owner is wanted.
func (s selection) wants(match, actions string) bool {
	return s.rules == nil || slices.ContainsFunc(ruleIDs(match, actions), func(id uint32) bool { return s.rules[id] })
}

// wantsForeign reports whether a flow is wanted that no owner has.
func (s selection) wantsForeign(cookie uint64, match, actions string) bool {
	return s.all || s.cookies[cookie] || s.rules != nil && pipeline.CookieKind(cookie) == pipeline.KindPolicy && s.wants(match, actions)
}

// parse returns the wanted object of a request; nil: all.
func parse(r *http.Request) (*diagnostics.Object, error) {
	values := r.URL.Query()[diagnostics.ObjectParameter]
	switch {
	case len(values) > 1:
		return nil, failf(http.StatusBadRequest, "parameter %s is set %d times; set it once", diagnostics.ObjectParameter, len(values))
	case len(values) == 0 || values[0] == "":
		return nil, nil
	}
	o, err := diagnostics.ParseObject(values[0])
	if err != nil {
		return nil, failf(http.StatusBadRequest, "%w", err)
	}
	return &o, nil
}

// selects returns the selection of an object that has flows in the snapshot.
func (n *Network) selects(node string, o *diagnostics.Object, snapshot *flowstore.Snapshot, pods []sandbox.Pod) (selection, error) {
	if o == nil {
		return selection{all: true}, nil
	}
	if o.Kind == diagnostics.KindNetworkPolicy || o.Kind == diagnostics.KindClusterNetworkPolicy {
		return n.selectsPolicy(node, *o)
	}
	s := selection{owners: map[pipeline.Owner]bool{}, cookies: map[uint64]bool{}}
	add := func(owner pipeline.Owner) {
		if snapshot.Has(owner) {
			s.owners[owner], s.cookies[owner.Cookie()] = true, true
		}
	}
	switch o.Kind {
	case diagnostics.KindPod, diagnostics.KindNamespace:
		n.addPods(*o, snapshot, pods, add)
	case diagnostics.KindService:
		add(pipeline.Owner{Kind: pipeline.KindService, Key: o.Namespace + "/" + o.Name})
	case diagnostics.KindEgressNetworkPolicy:
		if n.HasEgressPolicy(o.Namespace, o.Name) {
			add(pipeline.Owner{Kind: pipeline.KindEgressFirewall, Key: o.Namespace})
		}
	case diagnostics.KindNode:
		for _, kind := range []pipeline.Kind{pipeline.KindNode, pipeline.KindHostSubnet, pipeline.KindNodeAddresses} {
			add(pipeline.Owner{Kind: kind, Key: o.Name})
		}
	}
	if len(s.owners) == 0 {
		return s, failf(http.StatusNotFound, "node %s has no flows of %s: %s", node, o, absence(o.Kind))
	}
	return s, nil
}

// absence returns the reasons for which a node has no flows of an object of the kind.
func absence(k diagnostics.Kind) string {
	switch k {
	case diagnostics.KindPod:
		return "the pod does not exist, runs on another node, or is on the host network"
	case diagnostics.KindNamespace:
		return "no pod of the namespace runs on the node"
	case diagnostics.KindService:
		return "the service does not exist, is headless, or its namespace has no VNID"
	case diagnostics.KindEgressNetworkPolicy:
		return "the policy does not exist, or no pod of its namespace runs on the node"
	case diagnostics.KindNode:
		return "no Node or HostSubnet has that name"
	}
	return "it does not exist"
}

// addPods adds the owners of a pod, or of a namespace with its pods.
func (n *Network) addPods(o diagnostics.Object, snapshot *flowstore.Snapshot, pods []sandbox.Pod, add func(pipeline.Owner)) {
	namespace, prefix := o.Namespace, "target "+o.Namespace+"/"+o.Name+"/"
	if o.Kind == diagnostics.KindNamespace {
		namespace, prefix = o.Name, "target "+o.Name+"/"
		add(pipeline.Owner{Kind: pipeline.KindEgressFirewall, Key: namespace})
		if vnid, ok := flowstore.Get[config.VNID](n.Store, inputs.VNID(namespace)); ok {
			add(pipeline.Owner{Kind: pipeline.KindMulticast, Key: "vnid/" + vnid.String()})
			add(pipeline.Owner{Kind: pipeline.KindPolicy, Key: "VNID " + vnid.String()})
		}
	}
	for _, p := range pods {
		if p.Namespace == namespace && (o.Kind == diagnostics.KindNamespace || p.Name == o.Name) {
			add(p.Owner())
		}
	}
	snapshot.Owners(func(owner pipeline.Owner) {
		if owner.Kind == pipeline.KindPolicy && strings.HasPrefix(owner.Key, prefix) {
			add(owner)
		}
	})
}

// selectsPolicy returns the flows that a policy contributes to: those with the conjunction IDs of its rules.
func (n *Network) selectsPolicy(node string, o diagnostics.Object) (selection, error) {
	if n.Policies == nil {
		return selection{}, failf(http.StatusNotFound, "node %s has no flows of %s: mode %s enforces no policies", node, o, n.Mode)
	}
	ids, isolates, ok := n.Policies.RuleIDs(o.Namespace, o.Name)
	switch {
	case !ok:
		return selection{}, failf(http.StatusNotFound, "node %s has no flows of %s: the policy does not exist, or selects no pod of the node", node, o)
	case len(ids) == 0 && isolates:
		return selection{}, failf(http.StatusNotFound,
			"%s has no flows of its own on node %s: no rule of it has a peer now. It isolates the pods that it selects, by a bit in the flows of each pod; see pod/NAMESPACE/NAME", o, node)
	case len(ids) == 0:
		return selection{}, failf(http.StatusNotFound, "node %s has no flows of %s: no rule of it has a peer now", node, o)
	}
	s := selection{rules: make(map[uint32]bool, len(ids))}
	for _, id := range ids {
		s.rules[id] = true
	}
	return s, nil
}
