// Package checkout finds the source tree that a program or a test belongs to, where the manifests and the sources
// of what the lab builds are.
package checkout

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const module = "github.com/ovsdn/ovsdn"

// Root is the nearest folder, from start upward, with this module's go.mod and the lab's sources: a copy of go.mod alone
// is not a checkout.
func Root(start string) (string, error) {
	dir, err := filepath.Abs(start)
	if err != nil {
		return "", fmt.Errorf("find the checkout: %w", err)
	}
	for {
		found, err := isRoot(dir)
		if err != nil {
			return "", fmt.Errorf("find the checkout: %w", err)
		}
		if found {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", fmt.Errorf("no go.mod of %s in %s or above it: run from a checkout", module, start)
		}
		dir = parent
	}
}

func isRoot(dir string) (bool, error) {
	f, err := os.Open(filepath.Join(dir, "go.mod"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if name, ok := strings.CutPrefix(lines.Text(), "module "); ok {
			return strings.TrimSpace(name) == module && isDir(filepath.Join(dir, "test", "lab")), nil
		}
	}
	return false, nil
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
