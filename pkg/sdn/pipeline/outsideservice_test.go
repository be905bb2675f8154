package pipeline

import (
	"fmt"
	"testing"
)

func TestMasqueradePorts(t *testing.T) {
	for tunnel, want := range map[uint16]string{
		4789: "4790-32767", 8472: "8473-32767", 1023: "1024-32767", 1024: "1025-32767", 30000: "1024-29999", 32767: "1024-32766", 32768: "1024-32767",
	} {
		first, last := Node{VXLANPort: tunnel}.masqueradePorts()
		if got := fmt.Sprintf("%d-%d", first, last); got != want {
			t.Errorf("tunnels at port %d: got ports %s, want %s", tunnel, got, want)
		}
	}
}
