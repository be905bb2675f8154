package policy

import "testing"

// The numbers below firstID are those of samples of other flows.
func TestNewID_reserved(t *testing.T) {
	e := New()
	const name = "zpxqjuk" // its hash is 2
	for _, want := range []uint32{firstID, firstID + 1} {
		if got := e.newID(name, &conj{}); got != want {
			t.Errorf("got ID %d of %q, want %d", got, name, want)
		}
	}
}
