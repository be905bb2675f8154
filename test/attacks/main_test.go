// Package attacks tries in the lab what a pod, a tenant, a stolen node, a host on the underlay and a client of the API must not be able to do.
//
// All attacks share one lab of three nodes in mode multitenant, where VNIDs and policies are both evaluated. Each attack prints the attacker's
// position, what it sends, how much of it arrives, which must be nothing, and the counter that shows where it was dropped. A legitimate packet
// to the same receiver follows each attack: it shows that the receiver was listening.
//
// With OVSDN_E2E_ATTACKS_LAB=name the tests use a lab that is already up and leave it there.
package attacks

import (
	"os"
	"testing"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/lab"
)

// wholeVariable has floods and objects of full size tried, which takes minutes.
const wholeVariable = "OVSDN_E2E_WHOLE_ATTACKS"

func TestMain(m *testing.M) { run().Main(m) }

func run() fixture.Run {
	return fixture.Run{
		Name: "e2e-attacks", Variable: "OVSDN_E2E_ATTACKS_LAB",
		Shape: lab.Shape{Nodes: 3, Mode: lab.Multitenant},
	}
}

// sized returns how large a flood is: small in a run of all tests, whole in a soak.
func sized(small, whole int) int {
	if os.Getenv(wholeVariable) != "" {
		return whole
	}
	return small
}
