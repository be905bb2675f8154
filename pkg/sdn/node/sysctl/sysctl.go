// Package sysctl reads and writes the kernel's settings where the agent sees them.
package sysctl

import (
	"errors"
	"fmt"
	"io/fs"
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

// Ensure writes a setting of an interface if it differs, and returns the change, for logging. It does not write the same value: /proc/sys may be read-only,
// and a write of ip_forward resets other sysctls. before, if not nil, is called with the previous value, and prevents the change by an error. An optional
// setting that the kernel does not have is not an error.
func (d Dir) Ensure(s Setting, device string, before func(previous string) error) (change string, err error) {
	name := s.Name(device)
	have, err := d.Get(name)
	if s.Optional && errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil || s.Satisfied(have) {
		return "", err
	}
	if before != nil {
		if err := before(have); err != nil {
			return "", err
		}
	}
	if err := os.WriteFile(d.path(name), []byte(s.Value), 0o644); err != nil {
		if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
			err = pathErr.Err // the message has the name
		}
		return "", fmt.Errorf("set sysctl %s from %s to %s: %w; mount the host's /proc/sys/net writable below --sysctl-dir, or set the sysctl in /etc/sysctl.d and stop the program that changes it",
			dotted(name), have, s.Value, err)
	}
	return fmt.Sprintf("sysctl %s=%s (was %s)", name, s.Value, have), nil
}

// dotted returns the name as sysctl(8) and /etc/sysctl.d have it: net.ipv4.ip_forward. Dots in the name of an interface become slashes.
func dotted(name string) string { return strings.NewReplacer("/", ".", ".", "/").Replace(name) }

func (d Dir) path(name string) string {
	if d == "" {
		d = "/proc/sys"
	}
	return filepath.Join(string(d), name)
}
