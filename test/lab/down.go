package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/ovsdn/ovsdn/test/lab/machine"
)

// killedGrace is the time limit for processes to end after SIGKILL.
const killedGrace = time.Minute

// Down removes all parts of the lab of that name, in any state, and reports whether there were any. It looks at the machine, not at the
// lab's state file.
func Down(ctx context.Context, name string, progress func(format string, args ...any)) (existed bool, err error) {
	if err := validateName(name); err != nil {
		return false, err
	}
	l := &Lab{name: name}
	lock, err := acquire(ctx, l.path(), progress)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	if err == nil {
		defer lock.Close()
		existed = true
	}
	netns, err := netNSNames(name)
	if err != nil {
		return existed, err
	}
	existed = existed || len(netns) > 0
	if err := l.killMachines(ctx, l.path(), l.cgroup()); err != nil {
		return existed, fmt.Errorf("take lab %s down: %w", name, err)
	}
	var errs []error
	for _, n := range netns {
		errs = append(errs, removeNetNS(n))
	}
	errs = append(errs, os.RemoveAll(l.path()))
	if err := errors.Join(errs...); err != nil {
		return existed, fmt.Errorf("take lab %s down: %w", name, err)
	}
	removeShared()
	return existed, nil
}

// All returns the names of all labs on this machine, running or not: of all that have a folder, a network namespace or a cgroup.
func All() ([]string, error) {
	found := map[string]bool{}
	folders, err := os.ReadDir(stateRoot)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list the labs: %w", err)
	}
	for _, f := range folders {
		found[f.Name()] = f.IsDir()
	}
	namespaces, err := os.ReadDir(machine.NetNSDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list the labs: %w", err)
	}
	for _, n := range namespaces {
		found[labOfNetNS(n.Name())] = true
	}
	groups, err := machine.Cgroups(cgroupRoot)
	if err != nil {
		return nil, fmt.Errorf("list the labs: %w", err)
	}
	for _, g := range groups {
		found[g] = true
	}
	var names []string
	for name, isLab := range found {
		if isLab && validateName(name) == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// DownAll removes all labs of this machine, also those of which a killed process has left only parts. It returns the names of those that it
// removed, also with an error about another.
func DownAll(ctx context.Context, progress func(format string, args ...any)) (removed []string, err error) {
	names, err := All()
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, name := range names {
		if _, err := Down(ctx, name, progress); err != nil {
			errs = append(errs, err)
			continue
		}
		removed = append(removed, name)
	}
	return removed, errors.Join(errs...)
}

// killMachines ends the machines in the folder and below it, with all their processes and mounts.
func (l *Lab) killMachines(ctx context.Context, dir, cgroup string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, killedGrace, fmt.Errorf("timeout after %v", killedGrace))
	defer cancel()
	if err := machine.KillAll(ctx, dir); err != nil {
		return err
	}
	return machine.RemoveCgroup(ctx, cgroup)
}

// removeShared removes the folders that labs have in common if this was the last. While there are others, it fails, as
// it should. A lab that starts needs them, too.
func removeShared() {
	lock, err := os.Open(startLockFile)
	if err == nil {
		defer lock.Close()
		err = flockCurrent(lock, startLockFile)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return
	}
	if os.Remove(stateRoot) == nil {
		_ = os.Remove(machine.NetNSDir)
		machine.RemoveEmptyCgroup(cgroupRoot)
	}
}
