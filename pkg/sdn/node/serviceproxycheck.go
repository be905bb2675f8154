package node

import (
	"context"
	"fmt"

	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
)

// newKubeProxyCheck returns the check for kube-proxy's rules on a node whose services br0 balances. rules returns where it has rules, "" without.
func newKubeProxyCheck(rules func() (place string, err error), warn func(reason string, err error)) *problemCheck {
	find := func(context.Context) (found, failure error) {
		place, err := rules()
		if err != nil || place == "" {
			return nil, err
		}
		return fmt.Errorf("kube-proxy has rules on this node (%s) while br0 balances services: connections from outside the cluster and from programs of the node "+
			"go to the endpoints in these rules, which are outdated if kube-proxy no longer runs; set kube-apiserver in network.env, delete kube-proxy, "+
			"and run kube-proxy --cleanup on the node or restart it (docs/upgrade.md). Or let kube-proxy balance all services: annotate ClusterNetwork default with "+
			"ovsdn.io/service-proxy=external, and set service-proxy=external in network.env", place), nil
	}
	return &problemCheck{
		subject: "rules of kube-proxy", find: find, reason: eventreason.KubeProxyRules, warn: warn,
		effect: "services for hosts outside and the node's programs by kube-proxy's rules",
	}
}
