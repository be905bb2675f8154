package lab

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
)

func TestLabOfNetNS(t *testing.T) {
	for name, want := range map[string]string{
		"ovsdn-lab-fabric":         "lab",
		"ovsdn-e2e-attacks-node12": "e2e-attacks",
		"ovsdn-a-node1-outside":    "a-node1",
		"ovsdn-a-node":             "",
		"ovsdn-node1":              "",
		"ovsdn--node1":             "",
		"ovsdn-a-node1-x":          "",
		"other":                    "",
	} {
		if got := labOfNetNS(name); got != want {
			t.Errorf("%s is of lab %q, want %q", name, got, want)
		}
	}
}

// A lab of which only a network namespace is left is found and removed.
func TestAllFindsParts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	name := fmt.Sprint("t-p", os.Getpid()) // another checkout may run this test
	t.Cleanup(func() { down(t, name) })
	// The end of another lab may remove the folder at the same time, if it is empty.
	err := ensureNetNS(netnsName(name, "node1"))
	if errors.Is(err, os.ErrNotExist) {
		err = ensureNetNS(netnsName(name, "node1"))
	}
	if err != nil {
		t.Fatal(err)
	}
	if names, err := All(); err != nil || !slices.Contains(names, name) {
		t.Errorf("the labs of this machine are %v, %v, want %s among them", names, err, name)
	}
	if existed, err := Down(t.Context(), name, t.Logf); !existed || err != nil {
		t.Errorf("got %v, %v, want that parts of the lab existed and are removed", existed, err)
	}
	if names, err := All(); err != nil || slices.Contains(names, name) {
		t.Errorf("the labs of this machine are %v, %v, want none of the name %s", names, err, name)
	}
}
