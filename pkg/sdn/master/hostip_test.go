package master_test

import (
	"fmt"
	"strings"
	"testing"

	networkv1 "github.com/openshift/api/network/v1"
)

func hasHostIP(hostIP string) func(*networkv1.HostSubnet) error {
	return func(hs *networkv1.HostSubnet) error {
		if hs.HostIP != hostIP {
			return fmt.Errorf("HostSubnet %s: got hostIP %s, want %s", hs.Name, hs.HostIP, hostIP)
		}
		return nil
	}
}

// Nodes swap their addresses, one is installed again under another name, and one reports the address of another.
func testUniqueHostIP(t *testing.T, c *cluster) {
	c.run(t, nil)
	c.addNode(t, "node1", "192.0.2.1")
	c.addNode(t, "node2", "192.0.2.2")
	c.hostSubnet(t, "node1", hasHostIP("192.0.2.1"))
	c.hostSubnet(t, "node2", hasHostIP("192.0.2.2"))

	c.setAddress(t, "node1", "192.0.2.2")
	c.event(t, "Node", "node1", "NodeAddressUnusable", "192.0.2.2 belongs to HostSubnet node2, whose Node reports it, too")
	c.hostSubnet(t, "node1", hasHostIP("192.0.2.1"))
	c.setAddress(t, "node2", "192.0.2.1") // node1 is reconciled immediately, not at its next retry
	c.hostSubnet(t, "node1", hasHostIP("192.0.2.2"))
	c.hostSubnet(t, "node2", hasHostIP("192.0.2.1"))

	again := strings.Repeat("again", 50) + "end" // 253 characters, the most of a name
	c.addNode(t, again, "192.0.2.1")
	c.event(t, "Node", again, "NodeAddressUnusable", "delete Node node2 if its machine no longer exists")
	c.hostSubnet(t, "node2", hasHostIP("192.0.2.1"))
	c.deleteNode(t, "node2")
	c.hostSubnet(t, again, hasHostIP("192.0.2.1"))
	c.waitCount(t, 2)
}
