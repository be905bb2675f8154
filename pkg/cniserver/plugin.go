package cniserver

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// PluginName is the name of the CNI plugin, in the runtime's directory (/opt/cni/bin by default) and in configurations.
const PluginName = "ovsdn-cni"

// Plugin installs the plugin's program in the runtime's directory.
type Plugin struct {
	Source string // the program
	Dir    string // the runtime's directory

	installed fs.FileInfo // the last checked program; nil: Install reads it
}

// modTimeResolution is above the time resolution of file systems: two writes within it may have the same modification time.
const modTimeResolution = 2 * time.Second

// Install replaces the runtime's program if it differs from the source, and returns a description of the change for the log. The
// replacement is atomic, and does not affect a running program.
func (p *Plugin) Install() (change string, err error) {
	path := filepath.Join(p.Dir, PluginName)
	now := time.Now()
	info, err := os.Stat(path)
	if err == nil && p.installed != nil && same(info, p.installed) {
		return "", nil
	}
	want, err := os.ReadFile(p.Source)
	if err != nil {
		return "", fmt.Errorf("read the CNI plugin: %w", err)
	}
	got, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		change = "installed " + describe(want)
	case err != nil:
		return "", fmt.Errorf("read the installed CNI plugin: %w", err)
	case !bytes.Equal(got, want) || info == nil || info.Mode()&0o111 == 0:
		change = fmt.Sprintf("replaced %s with %s", describe(got), describe(want))
	}
	if change != "" {
		if err := writeAtomically(path, want, 0o755); err != nil {
			return "", fmt.Errorf("install the CNI plugin: %w", err)
		}
	}
	p.installed = nil
	if change == "" && now.Sub(info.ModTime()).Abs() > modTimeResolution {
		p.installed = info
	}
	return change, nil
}

// RemovePlugin removes the program. A missing program is no error.
func RemovePlugin(dir string) error {
	if err := os.Remove(filepath.Join(dir, PluginName)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the CNI plugin: %w", err)
	}
	return nil
}

func same(a, b fs.FileInfo) bool {
	return os.SameFile(a, b) && a.Size() == b.Size() && a.Mode() == b.Mode() && a.ModTime().Equal(b.ModTime())
}

func describe(program []byte) string {
	return fmt.Sprintf("sha256:%.6x (%d bytes)", sha256.Sum256(program), len(program))
}
