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

// PluginName is the plugin's file name in the runtime's directory (/opt/cni/bin by default), and its type in configurations.
const PluginName = "ovsdn-cni"

// Plugin keeps the plugin's program in the runtime's directory.
type Plugin struct {
	Source string // the program
	Dir    string // the runtime's directory

	installed fs.FileInfo // what Install has seen to be right; nil: it reads what is there
}

// modTimeGrain is more than any clock of files stands still: one that is written twice meanwhile looks as it did after the first time.
const modTimeGrain = 2 * time.Second

// Install makes the runtime's program equal to the source, of whatever version it was, and says what it changed, for logging. The
// runtime sees a whole program or none; one that runs at the moment goes on. A program that is equal is left alone.
func (p *Plugin) Install() (change string, err error) {
	path := filepath.Join(p.Dir, PluginName)
	now := time.Now()
	is, err := os.Stat(path)
	if err == nil && p.installed != nil && same(is, p.installed) {
		return "", nil
	}
	want, err := os.ReadFile(p.Source)
	if err != nil {
		return "", fmt.Errorf("read the CNI plugin: %w", err)
	}
	have, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		change = "installed " + describe(want)
	case err != nil:
		return "", fmt.Errorf("look at the CNI plugin that is there: %w", err)
	case !bytes.Equal(have, want) || is == nil || is.Mode()&0o111 == 0:
		change = fmt.Sprintf("replaced %s with %s", describe(have), describe(want))
	}
	if change != "" {
		if err := writeAtomically(path, want, 0o755); err != nil {
			return "", fmt.Errorf("install the CNI plugin: %w", err)
		}
	}
	p.installed = nil
	if change == "" && now.Sub(is.ModTime()).Abs() > modTimeGrain {
		p.installed = is
	}
	return change, nil
}

// RemovePlugin takes the program away. No program is no error.
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
