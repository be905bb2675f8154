package machine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// root builds the machine's file system and makes it the root of this process. PID 1 calls it once.
type root struct {
	spec *Spec
	path string // of the new root, in the old one
}

// enterRoot leaves this process with the machine's own file system and mounts, which pods can share.
func enterRoot(spec *Spec) error {
	r := &root{spec: spec, path: filepath.Join(spec.Dir, "root")}
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"mount the overlay over the host's root", r.mountOverlay},
		{"mount the kernel's file systems", r.mountKernel},
		{"mount the cgroups", r.mountCgroups},
		{"mount empty folders", r.mountEmpty},
		{"mount disks", r.mountDisks},
		{"bind files of the host", r.mountBinds},
		{"change the root", r.pivot},
		{"shadow the host's sysctls", r.shadowSysctls},
		{"write files", r.writeFiles},
		{"write links", r.writeLinks},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return nil
}

// mountOverlay stores the machine's writes in memory. The upper folder may not be inside the lower one, and the lower is the host's whole
// root.
func (r *root) mountOverlay() error {
	memory := filepath.Join(r.spec.Dir, "overlay")
	if err := mountNew(memory, "tmpfs", 0, "mode=755"); err != nil {
		return err
	}
	upper, work := filepath.Join(memory, "upper"), filepath.Join(memory, "work")
	for _, dir := range []string{upper, work} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	return mountNew(r.path, "overlay", 0, "lowerdir=/,upperdir="+upper+",workdir="+work)
}

func (r *root) mountKernel() error {
	if err := mountNew(r.in("/proc"), "proc", 0, ""); err != nil {
		return err
	}
	if err := mountNew(r.in("/sys"), "sysfs", 0, ""); err != nil {
		return err
	}
	if err := unix.Mount("/dev", r.in("/dev"), "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind /dev: %w", err)
	}
	// POSIX shared memory belongs to the machine, like the rest of IPC.
	return mountNew(r.in("/dev/shm"), "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777")
}

// mountCgroups shows the machine's own groups, at the same places as the host's. The host's mounts are still
// visible at the old root.
func (r *root) mountCgroups() error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	if all[0].fstype != "cgroup2" || len(all) > 1 {
		if err := mountNew(r.in("/sys/fs/cgroup"), "tmpfs", 0, "mode=755"); err != nil {
			return err
		}
	}
	for _, h := range all {
		if err := mountNew(r.in(h.path), h.fstype, 0, h.options); err != nil {
			return err
		}
		if h.fstype == "cgroup2" {
			if err := leaveRoot(r.in(h.path)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *root) mountEmpty() error {
	for _, dir := range append([]string{"/run", "/tmp"}, r.spec.Empty...) {
		mode := "mode=755"
		if dir == "/tmp" {
			mode = "mode=1777"
		}
		if err := mountNew(r.in(dir), "tmpfs", 0, mode); err != nil {
			return err
		}
	}
	for _, dir := range []string{"/run/netns", "/run/lock"} {
		if err := os.MkdirAll(r.in(dir), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// mountDisks binds folders of a real file system, because containerd's overlays cannot lie on an overlay.
// Where the host's own is one, memory has to do.
func (r *root) mountDisks() error {
	for _, dir := range r.spec.Disks {
		disk := r.spec.DiskDir(dir)
		if err := os.MkdirAll(disk, 0o755); err != nil {
			return err
		}
		var stat unix.Statfs_t
		if err := unix.Statfs(disk, &stat); err != nil {
			return err
		}
		if stat.Type == unix.OVERLAYFS_SUPER_MAGIC {
			if err := mountNew(r.in(dir), "tmpfs", 0, "mode=755"); err != nil {
				return err
			}
			continue
		}
		if err := bind(disk, r.in(dir)); err != nil {
			return err
		}
	}
	return nil
}

func (r *root) mountBinds() error {
	binds := append([]Bind{{r.spec.Dir, r.spec.Dir}, {r.spec.Logs, r.spec.Logs}}, r.spec.Binds...)
	for _, b := range binds {
		if err := bind(b.Source, r.in(b.Target)); err != nil {
			return err
		}
	}
	return nil
}

func (r *root) pivot() error {
	old := r.in("/.old")
	if err := os.Mkdir(old, 0o700); err != nil {
		return err
	}
	if err := unix.PivotRoot(r.path, old); err != nil {
		return err
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	if err := unix.Unmount("/.old", unix.MNT_DETACH); err != nil {
		return err
	}
	if err := os.Remove("/.old"); err != nil {
		return err
	}
	// Pods ask for mounts that propagate.
	return unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, "")
}

func (r *root) shadowSysctls() error {
	const shadows = "/run/sysctls"
	for key, value := range r.spec.Sysctls {
		shadow, sysctl := filepath.Join(shadows, key), filepath.Join("/proc/sys", key)
		if !exists(sysctl) {
			continue
		}
		if err := os.MkdirAll(filepath.Dir(shadow), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(shadow, []byte(value+"\n"), 0o644); err != nil {
			return err
		}
		if err := bind(shadow, sysctl); err != nil {
			return err
		}
	}
	return nil
}

func (r *root) writeFiles() error {
	for path, content := range r.spec.Files {
		// The host's may be a link to where nothing is now.
		if err := makeRoom(path); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (r *root) writeLinks() error {
	for path, target := range r.spec.Links {
		if err := makeRoom(path); err != nil {
			return err
		}
		if err := os.Symlink(target, path); err != nil {
			return err
		}
	}
	return nil
}

// makeRoom leaves nothing at the path but its folder.
func makeRoom(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (r *root) in(path string) string { return filepath.Join(r.path, path) }

// mountNew mounts a new file system on a folder, which it makes.
func mountNew(target, fstype string, flags uintptr, options string) error {
	if err := os.MkdirAll(target, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(fstype, target, fstype, flags, options); err != nil {
		return fmt.Errorf("mount %s (%s) on %s: %w", fstype, options, target, err)
	}
	return nil
}

// bind shows source at target, which it makes.
func bind(source, target string) error {
	info, err := os.Stat(source)
	if err != nil {
		return err
	}
	if info.IsDir() {
		err = os.MkdirAll(target, 0o755)
	} else if err = os.MkdirAll(filepath.Dir(target), 0o755); err == nil && !exists(target) {
		err = os.WriteFile(target, nil, 0o755)
	}
	if err != nil {
		return err
	}
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind %s to %s: %w", source, target, err)
	}
	return nil
}
