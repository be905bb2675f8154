package node

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// kubeProxyCheckInterval is the interval of checks for kube-proxy's rules: the kernel would report each change of each program's rules.
const kubeProxyCheckInterval = time.Minute

// kubeProxyCheck reports kube-proxy's rules on a node whose services br0 balances.
type kubeProxyCheck struct {
	find func() (place string, err error)
	warn func(reason string, err error)

	last   reconcile.LastError // the rules
	unread reconcile.LastError
}

// run checks the host until the context ends.
func (c *kubeProxyCheck) run(ctx context.Context) {
	wait.UntilWithContext(ctx, c.check, kubeProxyCheckInterval)
}

// check writes a log line and an Event when rules appear, and a log line when they were deleted. If they can't be read, the previous result remains.
func (c *kubeProxyCheck) check(ctx context.Context) {
	log := klog.FromContext(ctx)
	place, err := c.find()
	if c.unread.Set(err) {
		log.Error(err, "Failed to check for kube-proxy's rules", "retryAfter", kubeProxyCheckInterval)
	}
	if err != nil {
		return
	}
	if place == "" {
		if c.last.Get() != nil {
			log.Info("Rules of kube-proxy were deleted")
		}
		c.last.Set(nil)
		return
	}
	err = fmt.Errorf("kube-proxy has rules on this node (%s) while br0 balances services: connections from outside the cluster and from programs of the node "+
		"go to the endpoints in these rules, which are outdated if kube-proxy no longer runs; set kube-apiserver in network.env, delete kube-proxy, "+
		"and run kube-proxy --cleanup on the node or restart it (docs/upgrade.md). Or let kube-proxy balance all services: annotate ClusterNetwork default with "+
		"ovsdn.io/service-proxy=external, and set service-proxy=external in network.env", place)
	if c.last.Set(err) {
		log.Error(err, "Found rules of kube-proxy")
		c.warn(eventreason.KubeProxyRules, err)
	}
}

// effect returns the effect of the rules, after a comma, for the Node's condition; "" without rules.
func (c *kubeProxyCheck) effect() string {
	if c == nil || c.last.Get() == nil {
		return ""
	}
	return ", services for hosts outside and the node's programs by kube-proxy's rules"
}
