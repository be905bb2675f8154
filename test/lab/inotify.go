package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// The inotify instances of a machine's processes: kube-apiserver 3 and kube-controller-manager 1; kubelet 6, containerd 2 and kube-proxy 1.
// Pods of tests and the product's programs have none.
const (
	planeInotify = 4
	nodeInotify  = 9
)

// inotifyUse is the kernel's limit on inotify instances of one user, in all network and PID namespaces together, and how much of it is used.
type inotifyUse struct{ used, limit int }

// checkInotify fails if the kernel has too few free inotify instances for the lab's machines that do not run yet. Without it, kubelet, containerd
// and kube-proxy would exit or not become ready, with "too many open files".
func (u *up) checkInotify(ctx context.Context) error {
	need, err := u.missingInotify(ctx)
	if err != nil || need == 0 {
		return err
	}
	return u.checkInotifyOf(need)
}

func (l *Lab) checkInotifyOf(need int) error {
	use, err := readInotify("/proc", uint32(os.Geteuid()))
	if err != nil {
		return fmt.Errorf("count inotify instances: %w", err)
	}
	if err := use.check(l.name, need); err != nil {
		return errors.Join(err, l.others())
	}
	return nil
}

// others returns an error that names the other labs of this machine, if there are any.
func (l *Lab) others() error {
	names, err := All()
	if err != nil {
		return err
	}
	if names = slices.DeleteFunc(names, func(name string) bool { return name == l.name }); len(names) > 0 {
		return fmt.Errorf("other labs of this machine: %s", strings.Join(names, ", "))
	}
	return nil
}

// missingInotify returns the number of instances that the lab's machines that do not run yet need.
func (u *up) missingInotify(ctx context.Context) (int, error) {
	needs := map[string]int{ControlPlane: planeInotify}
	for _, number := range u.state.Nodes {
		needs[nodeName(number)] = nodeInotify
	}
	all := 0
	for name, need := range needs {
		running, err := u.isRunning(ctx, name)
		if err != nil {
			return 0, err
		}
		if !running {
			all += need
		}
	}
	return all, nil
}

func (use inotifyUse) check(name string, need int) error {
	free := max(use.limit-use.used, 0)
	if need <= free {
		return nil
	}
	const step = 128
	enough := (use.used + need + step - 1) / step * step
	return fmt.Errorf("lab %s needs %d inotify instances, and %d of %d are free: take another lab down, or raise the limit: sysctl -w fs.inotify.max_user_instances=%d",
		name, need, free, use.limit, enough)
}

// readInotify counts the instances of a user's processes. One that processes share counts for each of them.
func readInotify(proc string, uid uint32) (inotifyUse, error) {
	var use inotifyUse
	text, err := os.ReadFile(filepath.Join(proc, "sys/fs/inotify/max_user_instances"))
	if err != nil {
		return use, err
	}
	if use.limit, err = strconv.Atoi(strings.TrimSpace(string(text))); err != nil {
		return use, fmt.Errorf("fs.inotify.max_user_instances: %w", err)
	}
	processes, err := os.ReadDir(proc)
	if err != nil {
		return use, err
	}
	for _, p := range processes {
		if _, err := strconv.Atoi(p.Name()); err != nil {
			continue
		}
		n, err := inotifyOf(filepath.Join(proc, p.Name()), uid)
		if err != nil {
			return use, err
		}
		use.used += n
	}
	return use, nil
}

// inotifyOf returns the number of a process's instances, 0 if it is another user's or has ended.
func inotifyOf(process string, uid uint32) (int, error) {
	var owner unix.Stat_t
	if err := unix.Stat(process, &owner); err != nil || owner.Uid != uid {
		return 0, nil // it has ended
	}
	files, err := os.ReadDir(filepath.Join(process, "fd"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) || errors.Is(err, fs.ErrPermission) {
		return 0, nil // it has ended, or is not readable
	}
	if err != nil {
		return 0, err
	}
	n := 0
	for _, f := range files {
		if to, err := os.Readlink(filepath.Join(process, "fd", f.Name())); err == nil && strings.TrimPrefix(to, "anon_inode:") == "inotify" {
			n++
		}
	}
	return n, nil
}
