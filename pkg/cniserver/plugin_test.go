package cniserver

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestPlugin_install(t *testing.T) {
	source, dir := filepath.Join(t.TempDir(), "plugin"), filepath.Join(t.TempDir(), "opt", "cni", "bin")
	write := func(path, content string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(dir, PluginName)
	install := func(p *Plugin, want string) {
		t.Helper()
		change, err := p.Install()
		if err != nil || !strings.HasPrefix(change, want) || want == "" && change != "" {
			t.Errorf("Install: got %q, %v; want %q…", change, err, want)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != "new" {
			t.Errorf("program: got %q, %v", got, err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("mode: got %v, %v", info.Mode(), err)
		}
	}
	write(source, "new")
	p := &Plugin{Source: source, Dir: dir}
	install(p, "installed sha256:")
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(dir, "bridge")
	write(other, "another's")
	install(p, "")
	install(&Plugin{Source: source, Dir: dir}, "") // an agent that starts
	if after, err := os.Stat(path); err != nil || !os.SameFile(before, after) {
		t.Errorf("an equal program was replaced (%v)", err)
	}
	// An older agent's, written by whatever means, and one that can't be run.
	write(path, "old")
	install(p, "replaced sha256:")
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	install(p, "replaced sha256:")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	install(p, "installed sha256:")

	for range 2 {
		if err := RemovePlugin(dir); err != nil {
			t.Error(err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != "bridge" {
		t.Errorf("files after RemovePlugin: got %v, %v, want none", entries, err)
	}
}

// A program that is overwritten in place may have the same modification time, whose resolution is some milliseconds. Install therefore reads a
// recent program again, and an older one only once.
func TestPlugin_overwrittenDuringInstall(t *testing.T) {
	source, dir := filepath.Join(t.TempDir(), "plugin"), t.TempDir()
	if err := os.WriteFile(source, []byte("new"), 0o755); err != nil {
		t.Fatal(err)
	}
	p, path := &Plugin{Source: source, Dir: dir}, filepath.Join(dir, PluginName)
	if _, err := p.Install(); err != nil {
		t.Fatal(err)
	}
	installed, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("old"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(path, time.Time{}, installed.ModTime()); err != nil {
		t.Fatal(err)
	}
	if change, err := p.Install(); err != nil || !strings.HasPrefix(change, "replaced sha256:") {
		t.Errorf("Install: got %q, %v", change, err)
	}

	if err := os.Chtimes(path, time.Time{}, time.Now().Add(-time.Minute)); err != nil {
		t.Fatal(err)
	}
	if change, err := p.Install(); err != nil || change != "" {
		t.Errorf("Install of the installed program: got %q, %v", change, err)
	}
	if err := os.Remove(source); err != nil { // a read of the source would fail
		t.Fatal(err)
	}
	if change, err := p.Install(); err != nil || change != "" {
		t.Errorf("Install of the checked program: got %q, %v", change, err)
	}
}

// After the clock was set by an hour, in either direction, Install reads the program once more, not each time, and replaces an overwritten one.
func TestPlugin_clockChanged(t *testing.T) {
	for _, set := range []time.Duration{-time.Hour, time.Hour} {
		source, dir := filepath.Join(t.TempDir(), "plugin"), t.TempDir()
		if err := os.WriteFile(source, []byte("new"), 0o755); err != nil {
			t.Fatal(err)
		}
		p, path := &Plugin{Source: source, Dir: dir}, filepath.Join(dir, PluginName)
		if _, err := p.Install(); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, time.Time{}, time.Now().Add(-set)); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if change, err := p.Install(); err != nil || change != "" {
				t.Errorf("clock set by %v: got change %q, %v, want none", set, change, err)
			}
		}
		if p.installed == nil {
			t.Errorf("clock set by %v: Install reads the program each time, want once", set)
		}
		if err := os.WriteFile(path, []byte("old"), 0o755); err != nil {
			t.Fatal(err)
		}
		if change, err := p.Install(); err != nil || !strings.HasPrefix(change, "replaced sha256:") {
			t.Errorf("clock set by %v: Install of another program: got change %q, %v", set, change, err)
		}
	}
}

func TestPlugin_installError(t *testing.T) {
	dir := t.TempDir()
	if _, err := (&Plugin{Source: filepath.Join(dir, "none"), Dir: dir}).Install(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a program: got %v", err)
	}
	source := filepath.Join(dir, "plugin")
	if err := os.WriteFile(source, []byte("new"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := (&Plugin{Source: source, Dir: source}).Install(); err == nil {
		t.Error("directory is a file: got no error")
	}
}
