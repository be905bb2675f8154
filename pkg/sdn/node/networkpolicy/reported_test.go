package networkpolicy

import "testing"

// Packets beyond the limits of the log count, too; those that can't be read do not.
func TestReportedPackets(t *testing.T) {
	p := &Policies{denied: newTestDenied()}
	for i := range 3 * maxKinds {
		p.denied.handle(packetIn(t, false, 0, toPort(uint16(1000+i))))
	}
	p.denied.handle(packetIn(t, true, 7, toPort(80)))
	p.denied.handle(packetIn(t, true, 7, nil))
	if ingress, egress := p.ReportedPackets(); ingress != 3*maxKinds || egress != 1 {
		t.Errorf("got %d and %d packets, want %d and 1", ingress, egress, 3*maxKinds)
	}
}
