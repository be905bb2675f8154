// Package machine makes a machine of Linux namespaces: own network, mounts, processes, host name, IPC and cgroups,
// with an own writable view of the host's root file system. Its PID 1 is this package too: it mounts, starts
// and supervises the machine's units, and reaps orphans. When PID 1 is killed, the kernel ends all that ran in the machine.
//
// A machine is not a security boundary: it runs as root, on the host's kernel and devices.
package machine

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Spec describes a machine. It is spec.json in the machine's folder.
type Spec struct {
	// Name is the machine's host name, and the first part of its logs' names.
	Name string
	// Dir is the machine's folder, on the host and at the same path inside.
	Dir string
	// Logs is the folder with a log file per unit, on the host and at the same path inside.
	Logs string
	// NetNS is the file name of the machine's network namespace in /run/netns. It must exist.
	NetNS string
	// Cgroup is the machine's group in every hierarchy, like "ovsdn-lab/lab/node1".
	Cgroup string
	// Binds are shown inside.
	Binds []Bind `json:",omitempty"`
	// Empty are folders that are new and empty at each start. /run and /tmp always are.
	Empty []string `json:",omitempty"`
	// Disks are folders that outlive a restart of the machine, stored in Dir.
	Disks []string `json:",omitempty"`
	// Links are symbolic, by path.
	Links map[string]string `json:",omitempty"`
	// Files are written before anything starts, by path.
	Files map[string]string `json:",omitempty"`
	// Sysctls have these values inside of the machine. The kernel's are not changed: these are the ones that belong to the whole host. Keys are
	// paths below /proc/sys.
	Sysctls map[string]string `json:",omitempty"`
	// Units run in the machine.
	Units []Unit
	// Forward is where connections to the listener go that Start was given.
	Forward string `json:",omitempty"`
	// Proxy lets processes of other machines connect from this machine's network.
	Proxy *Proxy `json:",omitempty"`
}

// Bind shows a file or folder of the host at another path.
type Bind struct {
	Source, Target string
}

// Unit is a service, or a task that runs to its end once.
type Unit struct {
	Name string
	// Commands are one for a service; a task runs each in turn, and fails with the first that fails.
	Commands [][]string
	// Task makes the unit a task.
	Task bool `json:",omitempty"`
	// After are the units that must be up before this one starts for the first time: a service is up when it runs and
	// its socket, if it has one, accepts; a task when it has succeeded.
	After []string `json:",omitempty"`
	// Socket is where the service listens, by path.
	Socket string `json:",omitempty"`
	// Manual units start on request.
	Manual bool `json:",omitempty"`
}

// Paths inside a machine's folder.
const (
	specFile   = "spec.json"
	controlEnd = "control.sock"
	disksDir   = "disks"
)

// Log is the path of a unit's log.
func (s *Spec) Log(unit string) string { return filepath.Join(s.Logs, s.Name+"-"+unit+".log") }

// DiskDir is where a disk's content is on the host.
func (s *Spec) DiskDir(path string) string { return filepath.Join(s.Dir, disksDir, path) }

func (s *Spec) write() error {
	content, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the machine's specification: %w", err)
	}
	path := filepath.Join(s.Dir, specFile)
	if err := os.WriteFile(path+".next", content, 0o600); err != nil {
		return fmt.Errorf("write the machine's specification: %w", err)
	}
	return os.Rename(path+".next", path)
}

func readSpec(dir string) (*Spec, error) {
	content, err := os.ReadFile(filepath.Join(dir, specFile))
	if err != nil {
		return nil, fmt.Errorf("read the machine's specification: %w", err)
	}
	s := &Spec{}
	if err := json.Unmarshal(content, s); err != nil {
		return nil, fmt.Errorf("read the machine's specification %s: %w", filepath.Join(dir, specFile), err)
	}
	return s, s.validate()
}

func (s *Spec) validate() error {
	var errs []error
	known := map[string]bool{}
	for _, u := range s.Units {
		if known[u.Name] {
			errs = append(errs, fmt.Errorf("duplicate unit %s", u.Name))
		}
		if !u.Task && len(u.Commands) != 1 {
			errs = append(errs, fmt.Errorf("service %s has %d commands, want 1", u.Name, len(u.Commands)))
		}
		for _, command := range u.Commands {
			if len(command) == 0 {
				errs = append(errs, fmt.Errorf("unit %s has an empty command", u.Name))
			}
		}
		// Only units further up can be waited for, so nothing waits in a circle.
		for _, after := range u.After {
			if !known[after] {
				errs = append(errs, fmt.Errorf("unit %s waits for %q, which is not above it", u.Name, after))
			}
		}
		known[u.Name] = true
	}
	return errors.Join(errs...)
}
