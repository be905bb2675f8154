package egressips

import "testing"

// A NetNamespace that is deleted, and created again for the same Namespace without egress IPs, does not leave its pods without a source.
func TestEgressIPs_recreatedWithout(t *testing.T) {
	c := newCluster(t)
	c.hostSubnets.Add(hostSubnet("node1", "192.0.2.100"))
	c.netNamespaces.Add(netNamespace("shop@u1", "192.0.2.100"))
	a, _ := c.start(t, "shop@u1/5", "shop/6")
	a.want("5=192.0.2.100", "6=192.0.2.100", local)
	c.netNamespaces.Delete(netNamespace("shop@u1"))
	a.want("5="+unusable, "6="+unusable)
	c.netNamespaces.Add(netNamespace("shop@u1"))
	a.want("5=node", "6=node")
}

// The pods of a namespace whose UID becomes known retain their egress IP.
func TestEgressIPs_namespaceBecomesKnown(t *testing.T) {
	c := newCluster(t)
	c.hostSubnets.Add(hostSubnet("node1", "192.0.2.100"))
	unknown := netNamespace("shop@u1", "192.0.2.100")
	unknown.Annotations = nil
	c.netNamespaces.Add(unknown)
	a, _ := c.start(t, "shop/5")
	a.want("5=192.0.2.100", local)
	c.netNamespaces.Modify(netNamespace("shop@u1", "192.0.2.100"))
	a.attach("shop@u1/6")
	a.want("5=192.0.2.100", "6=192.0.2.100", local)
}
