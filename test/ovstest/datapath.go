package ovstest

import (
	"os"
	"os/exec"
	"testing"
)

// DatapathVariable is the environment variable that chooses the datapath of tests that run on either.
const DatapathVariable = "OVSDN_DATAPATH"

// The datapaths, by their datapath_type: OVS's own, and the kernel's, which needs a kernel that has it (package vm).
const (
	DatapathNetdev = "netdev"
	DatapathSystem = "system"
)

// DatapathType is the datapath_type for the bridge of a test that runs on either datapath: netdev unless DatapathVariable is set. If it is
// the kernel's, its module is loaded on return.
func DatapathType(t testing.TB) string {
	t.Helper()
	switch kind := os.Getenv(DatapathVariable); kind {
	case "", DatapathNetdev:
		return DatapathNetdev
	case DatapathSystem:
		if out, err := exec.Command("modprobe", "-a", "openvswitch", "vport-vxlan").CombinedOutput(); err != nil {
			t.Fatalf("this kernel has no Open vSwitch (make test-kernel runs tests on one that has): %v\n%s", err, out)
		}
		return DatapathSystem
	default:
		t.Fatalf("%s=%s: there is %s and %s", DatapathVariable, kind, DatapathNetdev, DatapathSystem)
		return ""
	}
}
