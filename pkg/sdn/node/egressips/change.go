package egressips

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	networkv1 "github.com/openshift/api/network/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/egressip"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/inputs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// change is the effect of events on the table: the flows of egress IPs and the sources of pods change in one bundle. The lock is held from newChange to send.
type change struct {
	e      *EgressIPs
	update flowstore.Update
	ips    map[netip.Addr]bool // whose state may have changed
	names  map[string]bool     // namespaces whose egress IPs may have changed
	faults []error             // of invalid entries, which are ignored; the controller reports them to users
}

func (e *EgressIPs) newChange() *change {
	return &change{e: e, ips: map[netip.Addr]bool{}, names: map[string]bool{}}
}

func (c *change) addIPs(ips []netip.Addr) {
	for _, ip := range ips {
		c.ips[ip] = true
	}
}

// hostSubnetChange adds the current state of a HostSubnet.
func (e *EgressIPs) hostSubnetChange(c *change, name string) {
	o := reconcile.Cached[networkv1.HostSubnet](e.options.HostSubnets, name)
	if o == nil {
		delete(e.vteps, name)
		c.addIPs(e.table.SetNode(name, egressip.Node{}))
		return
	}
	n, err := egressip.NodeOf(o, e.vteps[name])
	if err != nil && len(o.EgressIPs) > 0 {
		c.faults = append(c.faults, fmt.Errorf("HostSubnet %s: %w", name, err))
	}
	e.vteps[name] = n.Addr
	c.addIPs(e.table.SetNode(name, n))
}

// namespaceChange adds the current state of a NetNamespace.
func (e *EgressIPs) namespaceChange(c *change, name string) {
	o := reconcile.Cached[networkv1.NetNamespace](e.options.NetNamespaces, name)
	before, known := e.namespaces[name]
	if o == nil {
		if known {
			c.retire(name, before.uid, before)
			c.retire(name, "", before)
			delete(e.namespaces, name)
			c.addIPs(e.table.SetNamespace(name, nil))
		}
		return
	}
	if !known && len(o.EgressIPs) == 0 && !e.isRead(name, namespaceUID(o)) {
		return
	}
	ips, asks, err := config.ParseNamespaceEgressIPs(o)
	if err != nil {
		c.faults = append(c.faults, fmt.Errorf("NetNamespace %s: %w", name, err))
	}
	c.setNamespace(name, o, asks)
	c.addIPs(e.table.SetNamespace(name, ips))
}

// setNamespace records a NetNamespace. Pods of a previous Namespace of the name get none of its egress IPs.
func (c *change) setNamespace(name string, o *networkv1.NetNamespace, asks bool) {
	before, known := c.e.namespaces[name]
	now := namespace{object: o.UID, uid: namespaceUID(o), asks: asks}
	if now.uid == "" && now.object == before.object { // another client removed the annotation; the controller restores it
		now.uid = before.uid
	}
	if known && before.uid != now.uid && before.uid != "" { // the input without a UID is that of the current Namespace
		c.retire(name, before.uid, before)
	}
	c.e.namespaces[name] = now
	c.names[name] = true
}

// isRead reports whether pods have read egress IPs of the Namespace, as those of a NetNamespace that was deleted and created again.
func (e *EgressIPs) isRead(name string, uid types.UID) bool {
	_, current := e.store.Value(inputs.NamespaceEgressIPs(name, ""))
	_, same := e.store.Value(inputs.NamespaceEgressIPs(name, uid))
	return current || same
}

// retire drops the packets to outside of the remaining pods of a Namespace that asked for egress IPs: these may be another Namespace's by now.
func (c *change) retire(name string, uid types.UID, ns namespace) {
	input := inputs.NamespaceEgressIPs(name, uid)
	if _, published := c.e.store.Value(input); published {
		c.update.Publish = append(c.update.Publish, flowstore.Published{Input: input, Value: inputs.EgressIPs{Asks: ns.asks}})
		c.update.Retire = append(c.update.Retire, input)
	}
}

// send updates the store, and schedules the update of the host.
func (c *change) send() []*flowstore.Commit {
	local := c.build()
	if len(c.update.Changes) == 0 && len(c.update.Publish) == 0 && !c.update.Revoked.Permission {
		return nil
	}
	commits := c.e.store.Update(c.update)
	for i, ip := range local {
		c.e.addresses.change(ip, c.e.ips[ip].local, commits[i])
	}
	return commits
}

// build adds the flows of the changed egress IPs and the inputs of their namespaces to the update. Its first changes are those of the returned egress IPs,
// which this node hosts or hosted.
func (c *change) build() (local []netip.Addr) {
	var others []flowstore.Change
	for _, ip := range slices.SortedFunc(maps.Keys(c.ips), netip.Addr.Compare) {
		before, had := c.e.ips[ip]
		now, has := c.e.hosting(ip)
		if before == now {
			continue
		}
		c.names[before.namespace], c.names[now.namespace] = true, true
		c.record(ip, before, now, has)
		flows := flowstore.Change{Owner: ownerOf(ip)}
		if has {
			flows.State = c.e.node.EgressIP(pipeline.EgressIP{IP: ip, VTEP: now.remote()})
		}
		switch {
		case had == has && before.remote() == now.remote(): // the same flows
		case before.local || now.local:
			local = append(local, ip)
			c.update.Changes = append(c.update.Changes, flows)
		default:
			others = append(others, flows)
		}
	}
	c.update.Changes = append(c.update.Changes, others...)
	delete(c.names, "")
	for name := range c.names {
		c.publish(name)
	}
	return local
}

// record records the state of an egress IP. The connections of a namespace that no longer has it are flushed where the IP is hosted: in the same update, or when this
// node hosts it next. Those of pods whose egress IP moves to another node remain.
func (c *change) record(ip netip.Addr, before, now hosting, has bool) {
	if has {
		c.e.ips[ip] = now
	} else {
		delete(c.e.ips, ip)
	}
	c.e.hosted = c.e.hosted || now.local
	if !c.e.primed { // the first evaluation of an agent is of all connections
		return
	}
	if now.local && !before.local || before.local && !slices.Equal(c.e.table.IP(ip).Namespaces, []string{before.namespace}) {
		c.update.Revoked.Permission = true
	}
}

// publish publishes the egress IPs of a namespace, if pods read them.
func (c *change) publish(name string) {
	ns, known := c.e.namespaces[name]
	if !known {
		return
	}
	value := c.e.value(name)
	for i, input := range []flowstore.Input{inputs.NamespaceEgressIPs(name, ""), inputs.NamespaceEgressIPs(name, ns.uid)} {
		last, published := c.e.store.Value(input)
		if published && !reflect.DeepEqual(last, value) && (i == 0 || ns.uid != "") {
			c.update.Publish = append(c.update.Publish, flowstore.Published{Input: input, Value: value})
		}
	}
}

// value returns the egress IPs of a namespace, of which the usable ones have flows.
func (e *EgressIPs) value(name string) inputs.EgressIPs {
	usable, _ := e.table.Namespace(name)
	usable = slices.DeleteFunc(usable, func(ip netip.Addr) bool {
		_, has := e.ips[ip]
		return !has
	})
	if len(usable) == 0 {
		usable = nil
	}
	return inputs.EgressIPs{Usable: usable, Asks: e.namespaces[name].asks}
}

// hosting returns the state of an egress IP; false: it has no flows, so that packets with this source are dropped.
func (e *EgressIPs) hosting(ip netip.Addr) (h hosting, has bool) {
	i := e.table.IP(ip)
	if i.Problem != "" && i.Problem != egressip.NotReachable || len(i.Namespaces) != 1 || len(i.Nodes) != 1 {
		return hosting{}, false
	}
	h = hosting{namespace: i.Namespaces[0], vtep: i.VTEP, local: i.Nodes[0] == e.options.NodeName, reachable: i.Problem == ""}
	if !h.local && h.vtep == e.node.VTEP { // a HostSubnet with the address of this node
		return hosting{}, false
	}
	return h, true
}

// remote returns the VTEP of the node that hosts the egress IP, if it is another one.
func (h hosting) remote() netip.Addr {
	if h.local {
		return netip.Addr{}
	}
	return h.vtep
}

func ownerOf(ip netip.Addr) pipeline.Owner {
	return pipeline.Owner{Kind: pipeline.KindEgressIP, Key: ip.String()}
}
