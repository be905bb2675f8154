package node

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sysctl"
)

// A range of the node's own ports that overlaps the switch's has an Event at first and when it changes.
func TestClientPortCheck(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, localPortRange)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	var events []string
	c := newClientPortCheck(sysctl.Dir(dir), func(reason string, err error) { events = append(events, reason+" "+err.Error()) })
	for _, step := range []struct {
		name, portRange string // "": it can't be read
		events          int
		message         string // of the last Event
	}{
		{"low", "1024\t65535\n", 1, "begins with 1024:"},
		{"low, again", "1024\t65535\n", 1, "begins with 1024:"},
		{"unread", "", 1, "begins with 1024:"},
		{"not a number", "x\n", 1, "begins with 1024:"},
		{"read again", "1024\t65535\n", 1, "begins with 1024:"},
		{"other range", "32767\t60999\n", 2, "begins with 32767:"},
		{"default", "32768\t60999\n", 2, "begins with 32767:"},
		{"low after the default", "32767\t60999\n", 3, `set it to "32768 60999" in /etc/sysctl.d, and run sysctl --system`},
	} {
		if err := os.RemoveAll(file); err != nil {
			t.Fatal(err)
		}
		if step.portRange != "" {
			if err := os.WriteFile(file, []byte(step.portRange), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		c.check(t.Context())
		if len(events) != step.events {
			t.Fatalf("%s: got Events %q, want %d", step.name, events, step.events)
		}
		if got := events[len(events)-1]; !strings.HasPrefix(got, eventreason.LocalPortsOverlap+" ") || !strings.Contains(got, step.message) {
			t.Errorf("%s: got Event %q, want %s with %q", step.name, got, eventreason.LocalPortsOverlap, step.message)
		}
	}
}
