package servicenat

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// A host that lacks nft or what services need differs from one on which nft can't run at present.
func TestSupported_errors(t *testing.T) {
	for name, tc := range map[string]struct {
		nft         string // the program; "": none
		unsupported bool
		remedy      string
	}{
		"none":               {"", true, "install nft"},
		"not for this host":  {"\x7fELF", true, "install nft"},
		"too old":            {"#!/bin/sh\necho nftables v0.9.8", true, "install nft"},
		"no nf_tables":       {"#!/bin/sh\n[ $1 = --version ]", true, "install nft"},
		"no module":          {"#!/bin/sh\ncase $(/bin/cat) in *fib*) exit 1; esac", true, "use " + Requirements + ", and restart the agent"},
		"killed":             {"#!/bin/sh\nkill -9 $$", false, ""},
		"killed in the test": {"#!/bin/sh\ncase $(/bin/cat) in *fib*) kill -9 $$; esac", false, ""},
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
		})
	}
}

// Remove fails if nft can't run at present, unless there are no rules: then it does not run nft.
func TestRemove_errors(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	runtime.LockOSThread() // never unlocked: the thread ends with the test
	must(t, newNetNS(t).Set())
	dir, path := t.TempDir(), os.Getenv("PATH")
	for _, change := range []string{"", "nft add table ip " + tableName} {
		t.Setenv("PATH", path)
		sh(t, change)
		t.Setenv("PATH", dir)
		for nft, fails := range map[string]bool{
			"#!/bin/sh\necho nftables v0.9.8": false,
			"#!/bin/sh\n[ $1 = --version ]":   false,
			"#!/bin/sh\nkill -9 $$":           change != "",
		} {
			must(t, os.WriteFile(filepath.Join(dir, "nft"), []byte(nft), 0o755))
			if err := Remove(t.Context()); (err != nil) != fails {
				t.Errorf("with %q and the change %q: got error %v, want one: %t", nft, change, err, fails)
			}
		}
		must(t, os.Remove(filepath.Join(dir, "nft")))
		must(t, Remove(t.Context()))
	}
}
