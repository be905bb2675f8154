package attacks

import (
	"testing"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/lab"
)

// TestMain brings the lab up. With OVSDN_E2E_ATTACKS_LAB=name the tests use a lab that is already up and leave it there.
func TestMain(m *testing.M) { run().Main(m) }

func run() fixture.Run {
	return fixture.Run{
		Name: "e2e-attacks", Variable: "OVSDN_E2E_ATTACKS_LAB",
		Shape: lab.Shape{Nodes: 3, Mode: lab.Multitenant}, Complete: true,
	}
}

func TestAttacks(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: has a lab of its own; TestCapabilities tries a part of the attacks")
	}
	Try(t, run().Cluster(t))
}
