package vm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// metaPackage depends on Debian's current kernel. The cloud flavour has no 9p.
const metaPackage = "linux-image-amd64"

// kernel is an unpacked kernel package. It is locked against removal until it is closed.
type kernel struct {
	dir     string
	release string // as in uname -r
	lock    *os.File
}

// openKernel returns the newest kernel in apt's lists, from the cache if it has that.
func openKernel(ctx context.Context, cacheDir string) (*kernel, error) {
	pkg, err := kernelPackage(ctx)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cacheDir, 0o755); err != nil {
		return nil, err
	}
	lock, err := lockDir(ctx, cacheDir)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	k := &kernel{dir: filepath.Join(cacheDir, pkg), release: strings.TrimPrefix(pkg, "linux-image-")}
	if _, err := os.Stat(k.dir); errors.Is(err, fs.ErrNotExist) {
		if err := fetchKernel(ctx, cacheDir, pkg, k.release); err != nil {
			return nil, err
		}
		removeOthers(cacheDir, pkg)
	}
	if k.lock, err = os.Open(k.dir); err != nil {
		return nil, err
	}
	if err := unix.Flock(int(k.lock.Fd()), unix.LOCK_SH); err != nil {
		return nil, errors.Join(err, k.lock.Close())
	}
	return k, nil
}

// Close lets the kernel be removed when there is a newer one.
func (k *kernel) Close() { k.lock.Close() }

func (k *kernel) image() string      { return filepath.Join(k.dir, "boot", "vmlinuz-"+k.release) }
func (k *kernel) modulesDir() string { return filepath.Join(k.dir, "lib", "modules", k.release) }

// bootModules are the files of the modules that the guest needs to reach its root file system, in the order in
// which they must be loaded.
func (k *kernel) bootModules(ctx context.Context) ([]string, error) {
	const needed = "virtio_pci virtio_console 9pnet_virtio 9p overlay"
	var files []string
	seen := map[string]bool{}
	for module := range strings.FieldsSeq(needed) {
		out, err := output(ctx, "/", "modprobe", "--dirname="+k.dir, "--set-version="+k.release, "--show-depends", module)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(out) {
			// "insmod FILE OPTIONS", or "builtin NAME"
			if word := strings.Fields(line); len(word) > 1 && word[0] == "insmod" && !seen[word[1]] {
				seen[word[1]] = true
				files = append(files, word[1])
			}
		}
	}
	return files, nil
}

func kernelPackage(ctx context.Context) (string, error) {
	out, err := output(ctx, "/", "apt-cache", "depends", "--important", metaPackage)
	if err != nil {
		return "", fmt.Errorf("which kernel is current (a Debian with amd64 packages is needed): %w", err)
	}
	for line := range strings.Lines(out) {
		if _, pkg, ok := strings.Cut(strings.TrimSpace(line), "Depends: "); ok && strings.HasPrefix(pkg, "linux-image-") {
			return pkg, nil
		}
	}
	return "", fmt.Errorf("apt knows no package %s: run apt-get update on a Debian", metaPackage)
}

// fetchKernel downloads and unpacks the package. The folder appears complete or not at all.
func fetchKernel(ctx context.Context, cacheDir, pkg, release string) error {
	work, err := os.MkdirTemp(cacheDir, "unfinished-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if _, err := output(ctx, work, "apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", pkg); err != nil {
		return fmt.Errorf("if the mirror no longer has the package, run apt-get update: %w", err)
	}
	debs, err := filepath.Glob(filepath.Join(work, "*.deb"))
	if err != nil || len(debs) != 1 {
		return errors.Join(fmt.Errorf("apt-get download left %d packages", len(debs)), err)
	}
	unpacked := filepath.Join(work, pkg)
	if _, err := output(ctx, work, "dpkg", "--extract", debs[0], unpacked); err != nil {
		return err
	}
	if _, err := output(ctx, work, "depmod", "--basedir", unpacked, release); err != nil {
		return err
	}
	return os.Rename(unpacked, filepath.Join(cacheDir, pkg))
}

// removeOthers removes kernels that no machine runs on, and what an interrupted fetch left. What stays costs only space.
func removeOthers(cacheDir, current string) {
	entries, err := os.ReadDir(cacheDir)
	if err != nil {
		return
	}
	for _, e := range entries {
		if e.Name() == current {
			continue
		}
		dir, err := os.Open(filepath.Join(cacheDir, e.Name()))
		if err != nil {
			continue
		}
		if unix.Flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			_ = os.RemoveAll(dir.Name())
		}
		dir.Close()
	}
}

// lockDir waits until no other process fetches a kernel. The lock ends with the file or the process.
func lockDir(ctx context.Context, dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errors.Join(err, f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("wait for another fetch of a kernel: %w", context.Cause(ctx)), f.Close())
		case <-tick.C:
		}
	}
}
