package nftables

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// inNetNS moves the test into a new network namespace, whose ruleset is empty.
func inNetNS(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
}

func nft(t *testing.T, command string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "nft", command).CombinedOutput(); err != nil {
		t.Fatalf("nft %s: %v: %s", command, err, out)
	}
}

func TestHas(t *testing.T) {
	inNetNS(t)
	for _, step := range []struct {
		change       string
		table, rules bool
	}{
		{"add table ip6 filter", false, false},
		{"add table ip filter", true, false},
		{"add chain ip filter ours", true, false},
		{"add rule ip filter ours accept; add chain ip filter other; flush chain ip filter other", true, true},
		{"add rule ip filter other jump ours; flush chain ip filter ours", true, false},
		{"add chain ip6 filter ours; add rule ip6 filter ours accept", true, false},
		{"delete table ip filter", false, false},
	} {
		nft(t, step.change)
		if got, err := HasTable("filter"); err != nil || got != step.table {
			t.Errorf("%s: got table %t, %v, want %t", step.change, got, err, step.table)
		}
		if got, err := HasRules("filter", "ours"); err != nil || got != step.rules {
			t.Errorf("%s: got rules %t, %v, want %t", step.change, got, err, step.rules)
		}
	}
}

// The generation increases with each change of any program.
func TestGeneration(t *testing.T) {
	inNetNS(t)
	before, err := Generation()
	if err != nil {
		t.Fatal(err)
	}
	nft(t, "add table ip another")
	if after, err := Generation(); err != nil || after != before+1 {
		t.Errorf("got generation %d (%v) after %d, want the next one", after, err, before)
	}
}

func TestRetryInterrupted(t *testing.T) {
	for _, test := range []struct{ interrupted, want int }{{0, 1}, {maxDumps - 1, maxDumps}, {maxDumps, maxDumps}} {
		calls := 0
		_, err := retryInterrupted(func() ([][]byte, error) {
			if calls++; calls <= test.interrupted {
				return nil, nl.ErrDumpInterrupted
			}
			return nil, nil
		})
		if failed := test.interrupted == maxDumps; calls != test.want || errors.Is(err, nl.ErrDumpInterrupted) != failed {
			t.Errorf("%d interrupted: got %d dumps, error %v, want %d", test.interrupted, calls, err, test.want)
		}
	}
}
