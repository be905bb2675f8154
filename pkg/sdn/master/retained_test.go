package master_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	networkv1 "github.com/openshift/api/network/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/master"
)

func isRetained(hs *networkv1.HostSubnet) error {
	if !config.IsRetained(hs) {
		return errors.New("the HostSubnet is not marked as that of a deleted Node")
	}
	return nil
}

// of checks that the HostSubnet is the Node's and has the subnet.
func of(uid any, subnet string) func(*networkv1.HostSubnet) error {
	return func(hs *networkv1.HostSubnet) error {
		if got := hs.Annotations[networkv1.NodeUIDAnnotation]; got != fmt.Sprint(uid) || config.IsRetained(hs) {
			return fmt.Errorf("got annotations %v, want those of Node %v", hs.Annotations, uid)
		}
		return has(subnet)(hs)
	}
}

// A Node that was deleted returns while another controller leads, and then flaps.
func testNodeReturns(t *testing.T, c *cluster) {
	retain := func(cfg *master.Config) { cfg.HostSubnetRetention = time.Hour }
	_, stop := c.run(t, retain)
	c.addNode(t, "node1", "192.0.2.1")
	c.hostSubnet(t, "node1", has("10.128.0.0/23"))
	c.deleteNode(t, "node1")
	c.hostSubnet(t, "node1", isRetained)
	stop()
	c.start(t, retain)
	c.addNode(t, "node2", "192.0.2.2")
	c.hostSubnet(t, "node2", has("10.129.0.0/23"))
	node := c.addNode(t, "node1", "192.0.2.1")
	c.hostSubnet(t, "node1", of(node.UID, "10.128.0.0/23"))
	for range 10 {
		c.deleteNode(t, "node1")
		node = c.addNode(t, "node1", "192.0.2.1")
	}
	c.hostSubnet(t, "node1", of(node.UID, "10.128.0.0/23"))
}

// Another Node with the address of a deleted one does not get its subnet, and neither does a Node of its name with another address.
func testAddressInTurn(t *testing.T, c *cluster) {
	c.run(t, func(cfg *master.Config) { cfg.HostSubnetRetention = time.Hour })
	c.addNode(t, "node1", "192.0.2.1")
	c.hostSubnet(t, "node1", has("10.128.0.0/23"))
	for range 3 {
		c.deleteNode(t, "node1")
		c.hostSubnet(t, "node1", isRetained)
		node2 := c.addNode(t, "node2", "192.0.2.1")
		c.hostSubnet(t, "node2", of(node2.UID, "10.129.0.0/23"))
		c.deleteNode(t, "node2")
		c.hostSubnet(t, "node2", isRetained)
		node1 := c.addNode(t, "node1", "192.0.2.1")
		c.hostSubnet(t, "node1", of(node1.UID, "10.128.0.0/23"))
	}
	c.deleteNode(t, "node1")
	moved := c.addNode(t, "node1", "192.0.2.7")
	c.hostSubnet(t, "node1", of(moved.UID, "10.130.0.0/23"))
}

// If no other subnet is free, that of the Node that was deleted first is released.
func testReleasesRetained(t *testing.T, c *cluster) {
	c.run(t, func(cfg *master.Config) {
		cfg.HostSubnetRetention = time.Hour
		cfg.ClusterNetworks = []string{"10.128.0.0/22"} // two subnets
	})
	c.addNode(t, "node1", "192.0.2.1")
	c.hostSubnet(t, "node1", has("10.128.0.0/23"))
	c.addNode(t, "node2", "192.0.2.2")
	c.hostSubnet(t, "node2", has("10.128.2.0/23"))
	c.addNode(t, "node3", "192.0.2.3")
	c.event(t, "Node", "node3", "NoHostSubnet", "no subnet is free")
	c.deleteNode(t, "node2")
	c.hostSubnet(t, "node3", has("10.128.2.0/23")) // immediately, not at its next retry
	c.waitCount(t, 2)
}
