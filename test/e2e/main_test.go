// Package e2e drives a real cluster in the lab: a Kubernetes control plane, kubelet and containerd call the product, and the tests
// look at packets, at the switch and at the host, not at logs.
//
// In the short tier TestCapabilities sees each capability once, in a lab of its own. The tests of the complete tier share one lab, which lives as
// long as `go test` runs. With OVSDN_E2E_LAB=name they use a lab that is already up and leave it there, which is what one wants while writing a
// test.
package e2e

import (
	"testing"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/lab"
)

// labVariable is the lab for all tests, which they do not remove.
const labVariable = "OVSDN_E2E_LAB"

// ownLab is the name of the lab that go test starts and takes down.
const ownLab = "e2e"

func TestMain(m *testing.M) {
	run().Main(m)
}

func run() fixture.Run {
	return fixture.Run{Name: ownLab, Variable: labVariable, Shape: lab.Shape{Nodes: 2, Mode: lab.Subnet, ServiceProxy: lab.External}, Complete: true}
}
