package br0

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
)

func TestSocketWatch(t *testing.T) {
	dir := t.TempDir()
	var got []string
	w := socketWatch{dir: dir, report: func(reason, message string) { got = append(got, reason+": "+message) }}
	sockets := []string{"db.sock", "br0.mgmt"}
	const prefix = "sockets of Open vSwitch were deleted while it runs: "
	write := func(t *testing.T, names ...string) {
		t.Helper()
		for _, name := range names {
			if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	write(t, sockets...)
	start := time.Now()
	for _, step := range []struct {
		name      string
		after     time.Duration
		lose      []string
		connected bool
		want      string // in the one new Event; "": none
	}{
		{"all exist", 0, nil, true, ""},
		{"lost while Open vSwitch restarts", time.Second, sockets, false, ""},
		{"lost while it runs", 2 * time.Second, sockets, true, prefix + "db.sock and br0.mgmt in"},
		{"still lost", 3 * time.Second, sockets, true, ""},
		{"still lost at the next reminder", socketsReminder + 3*time.Second, sockets, true, prefix + "db.sock and br0.mgmt in"},
		{"created again", socketsReminder + 4*time.Second, nil, true, ""},
		{"one lost again", socketsReminder + 5*time.Second, sockets[:1], true, prefix + "db.sock in"},
	} {
		t.Run(step.name, func(t *testing.T) {
			got = nil
			write(t, sockets...)
			for _, name := range step.lose {
				if err := os.Remove(filepath.Join(dir, name)); err != nil {
					t.Fatal(err)
				}
			}
			w.check(start.Add(step.after), step.connected)
			if step.want == "" && len(got) > 0 || step.want != "" && (len(got) != 1 || !strings.HasPrefix(got[0], eventreason.OpenvSwitchSocketsMissing+": "+step.want)) {
				t.Errorf("reported %q, want %q", got, step.want)
			}
		})
	}
}
