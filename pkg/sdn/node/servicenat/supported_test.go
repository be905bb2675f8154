package servicenat

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A host that lacks nft or what services need differs from one on which nft can't run at present.
func TestSupported_errors(t *testing.T) {
	for name, tc := range map[string]struct {
		nft         string // the program; "": none
		unsupported bool
		remedy      string
		removeFails bool
	}{
		"none":               {"", true, "install nft", false},
		"not for this host":  {"\x7fELF", true, "install nft", false},
		"too old":            {"#!/bin/sh\necho nftables v0.9.8", true, "install nft", false},
		"no nf_tables":       {"#!/bin/sh\n[ $1 = --version ]", true, "install nft", false},
		"no module":          {"#!/bin/sh\ncase $(/bin/cat) in *fib*) exit 1; esac", true, "use " + Requirements + ", and restart the agent", false},
		"killed":             {"#!/bin/sh\nkill -9 $$", false, "", true},
		"killed in the test": {"#!/bin/sh\ncase $(/bin/cat) in *fib*) kill -9 $$; esac", false, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			t.Setenv("PATH", dir)
			if tc.nft != "" {
				if err := os.WriteFile(filepath.Join(dir, "nft"), []byte(tc.nft), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			if err := Supported(t.Context()); err == nil || errors.Is(err, ErrUnsupported) != tc.unsupported || !strings.Contains(err.Error(), tc.remedy) {
				t.Errorf("got error %v, want one that reports an unsupported host: %t, with the remedy %q", err, tc.unsupported, tc.remedy)
			}
			if err := Remove(t.Context()); (err != nil) != tc.removeFails {
				t.Errorf("Remove: got error %v, want one: %t", err, tc.removeFails)
			}
		})
	}
}
