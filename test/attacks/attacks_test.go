package attacks

import (
	"os"
	"testing"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/lab"
)

// TestMain brings the lab up. With OVSDN_E2E_ATTACKS_LAB=name the tests use a lab that is already up and leave it there.
func TestMain(m *testing.M) { run().Main(m) }

func run() fixture.Run {
	return fixture.Run{
		Name: "e2e-attacks", Variable: "OVSDN_E2E_ATTACKS_LAB",
		Shape: lab.Shape{Nodes: 3, Mode: lab.Multitenant, ServiceProxy: lab.External}, Complete: true,
	}
}

func TestAttacks(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: has a lab of its own; TestCapabilities tries a part of the attacks")
	}
	Try(t, run().Cluster(t))
}

// balancedVariable is a lab with --service-proxy=ovs for TestAttacksOnBalancedServices, which it does not remove.
const balancedVariable = "OVSDN_E2E_BALANCED_ATTACKS_LAB"

// TestAttacksOnBalancedServices tries the attacks without kube-proxy (--service-proxy=ovs), in a lab of its own.
func TestAttacksOnBalancedServices(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: has a lab of its own; the short tier has TestBalancedServices of test/datapath")
	}
	var c *fixture.Cluster
	if name := os.Getenv(balancedVariable); name != "" {
		c = fixture.Open(t, name)
	} else {
		c = fixture.Own(t, "e2e-balanced", lab.Shape{Nodes: 3, Mode: lab.Multitenant, ServiceProxy: lab.OVS, Install: fixture.Install()})
	}
	Try(t, c)
}
