package egressips

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	cnitypes "github.com/containernetworking/cni/pkg/types"
	networkv1 "github.com/openshift/api/network/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/inputs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// The inputs have no default: a pod whose egress IPs are not known yet has no flows, so that none of its packets leave with another source. An input is published when
// it is read first, so that namespaces without pods on this node cost nothing.

// fetchTimeout limits the request to the API server that a pod's ADD waits for.
const fetchTimeout = 2 * time.Second

var errNotWatched = errors.New("the watch has not delivered the NetNamespace")

// resolve publishes the egress IPs of a Namespace that a pod's ADD needs. If the watch has not delivered its NetNamespace, the API server is asked whether it has
// egress IPs; with egress IPs, the container runtime repeats ADD.
func (e *EgressIPs) resolve(ctx context.Context, key string) error {
	name, uid := splitKey(key)
	if e.publishCurrent(name, uid) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	o, err := e.options.Get(ctx, name)
	if err != nil {
		return tryAgain(name, err)
	}
	if e.publishCurrent(name, uid) {
		return nil // the watch has delivered it in the meantime
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	_, known := e.namespaces[name]
	if known || len(o.EgressIPs) > 0 || uid != "" && namespaceUID(o) != uid {
		return tryAgain(name, errNotWatched)
	}
	e.namespaces[name] = namespace{object: o.UID, uid: namespaceUID(o)}
	e.publishFirst(key, inputs.EgressIPs{})
	return nil
}

// publishCurrent publishes the egress IPs of the Namespace if its NetNamespace is in the cache.
func (e *EgressIPs) publishCurrent(name string, uid types.UID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.load(name) || uid != "" && uid != e.namespaces[name].uid {
		return false
	}
	e.publishFirst(inputs.NamespaceEgressIPs(name, uid).Key, e.value(name))
	return true
}

// missing publishes an input that the owner reads and that was not read before. Pods of other Namespaces than the current one of the name get none of its egress IPs:
// packets of a pod that had an egress IP, or may have had one, are dropped.
func (e *EgressIPs) missing(key string, owner pipeline.Owner) {
	name, uid := splitKey(key)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.load(name)
	ns, known := e.namespaces[name]
	value := inputs.EgressIPs{Asks: ns.asks || e.previous[owner.Cookie()]}
	if known && (uid == "" || uid == ns.uid) {
		value = e.value(name)
	}
	e.publishFirst(key, value)
}

// load applies the cached NetNamespace, whose event may not have arrived, and reports whether there is one. The lock must be held.
func (e *EgressIPs) load(name string) bool {
	o := reconcile.Cached[networkv1.NetNamespace](e.options.NetNamespaces, name)
	if o == nil {
		return false
	}
	if _, known := e.namespaces[name]; !known {
		e.namespaces[name] = namespace{object: o.UID, uid: namespaceUID(o)}
	}
	c := e.newChange()
	e.namespaceChange(c, name)
	c.send()
	return true
}

// publishFirst publishes an input by its key.
func (e *EgressIPs) publishFirst(key string, value inputs.EgressIPs) {
	e.store.Update(flowstore.Update{Publish: []flowstore.Published{{Input: flowstore.Input{Kind: inputs.KindEgressIPs, Key: key}, Value: value}}})
}

func tryAgain(name string, err error) error {
	return cnitypes.NewError(cnitypes.ErrTryAgainLater, fmt.Sprintf("the egress IPs of namespace %s are not known yet", name), err.Error())
}

func namespaceUID(o *networkv1.NetNamespace) types.UID {
	return types.UID(o.Annotations[config.NamespaceUIDAnnotation])
}

// splitKey returns the namespace and the UID of the key of an input.
func splitKey(key string) (name string, uid types.UID) {
	name, rest, _ := strings.Cut(key, "/")
	return name, types.UID(rest)
}
