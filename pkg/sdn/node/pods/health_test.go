package pods

import "testing"

// A manager without anything to ask: it would panic.
func TestStatusAsksNobody(t *testing.T) {
	m := &Manager{}
	m.recovered.Store(true)
	if err := m.Status(t.Context()); err != nil {
		t.Error(err)
	}
	if err := m.Healthy(); err != nil {
		t.Error(err)
	}
}
