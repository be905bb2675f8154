package cni

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// disk is a small file system, mounted nowhere, so that it ends with this process, however that ends.
type disk struct {
	path    string // of its root, for all processes as long as this one lives
	context int    // file descriptor of the file system
}

const diskSize = "1m"

func newDisk(t testing.TB) disk {
	t.Helper()
	opened := func(fd int, err error) int {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Close(fd); err != nil {
				t.Error(err)
			}
		})
		return fd
	}
	d := disk{context: opened(unix.Fsopen("tmpfs", unix.FSOPEN_CLOEXEC))}
	if err := errors.Join(unix.FsconfigSetString(d.context, "source", diskSource), unix.FsconfigSetString(d.context, "size", diskSize), unix.FsconfigCreate(d.context)); err != nil {
		t.Fatal(err)
	}
	root := opened(unix.Fsmount(d.context, unix.FSMOUNT_CLOEXEC, 0))
	d.path = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), root)
	return d
}

// diskSource is the name of these file systems in lists of mounts.
const diskSource = "ovsdn-test"

// fill leaves no room until the returned function is called.
func (d disk) fill(t testing.TB) (free func()) {
	t.Helper()
	filler := filepath.Join(d.path, "filler")
	if err := os.WriteFile(filler, make([]byte, 2<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	return func() {
		if err := os.Remove(filler); err != nil {
			t.Error(err)
		}
	}
}

// readOnly makes the disk read-only until the returned function is called.
func (d disk) readOnly(t testing.TB) (writable func()) {
	t.Helper()
	set := func(flag string) {
		t.Helper()
		if err := errors.Join(unix.FsconfigSetFlag(d.context, flag), unix.FsconfigReconfigure(d.context)); err != nil {
			t.Fatal(err)
		}
	}
	set("ro")
	return func() { set("rw") }
}

// A killed run leaves no mount behind.
func TestDiskIsNotMounted(t *testing.T) {
	r := newNode(t)
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), diskSource) || strings.Contains(string(mounts), r.disk.path) {
		t.Errorf("the disk is in the host's mounts:\n%s", mounts)
	}
	writable := r.disk.readOnly(t)
	file := filepath.Join(r.disk.path, "file")
	if err := os.WriteFile(file, nil, 0o600); !errors.Is(err, unix.EROFS) {
		t.Errorf("read-only: got %v, want %v", err, unix.EROFS)
	}
	writable()
	r.disk.fill(t)()
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Error(err)
	}
}
