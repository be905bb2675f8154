// Package sysctl reads and writes the kernel's settings where the agent sees them.
package sysctl

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Dir is the directory of the settings; "" is /proc/sys. A container that is not privileged sees that read-only, and the host's at another
// place. Either way settings below net are those of the calling thread's network namespace.
type Dir string

// Get returns the setting of that name, such as net/ipv4/ip_forward.
func (d Dir) Get(name string) (string, error) {
	value, err := os.ReadFile(d.path(name))
	if err != nil {
		return "", fmt.Errorf("read sysctl %s: %w", name, err)
	}
	return strings.TrimSpace(string(value)), nil
}

// Set writes the setting.
func (d Dir) Set(name, value string) error {
	if err := os.WriteFile(d.path(name), []byte(value), 0o644); err != nil {
		return fmt.Errorf("write sysctl %s: %w", name, err)
	}
	return nil
}

func (d Dir) path(name string) string {
	if d == "" {
		d = "/proc/sys"
	}
	return filepath.Join(string(d), name)
}
