package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestInotifyUseCheck(t *testing.T) {
	for _, tc := range []struct {
		use  inotifyUse
		need int
		want string
	}{
		{inotifyUse{0, 128}, 22, ""},
		{inotifyUse{106, 128}, 22, ""},
		{inotifyUse{107, 128}, 22, "lab dev needs 22 inotify instances, and 21 of 128 are free: take another lab down, or raise the limit: sysctl -w fs.inotify.max_user_instances=256"},
		{inotifyUse{250, 128}, 22, "lab dev needs 22 inotify instances, and 0 of 128 are free: take another lab down, or raise the limit: sysctl -w fs.inotify.max_user_instances=384"},
	} {
		got := ""
		if err := tc.use.check("dev", tc.need); err != nil {
			got = err.Error()
		}
		if got != tc.want {
			t.Errorf("%+v, need %d: got %q, want %q", tc.use, tc.need, got, tc.want)
		}
	}
}

// TestReadInotify_kernel: instances of this process are counted. The number of other processes' instances varies.
func TestReadInotify_kernel(t *testing.T) {
	self := filepath.Join("/proc", fmt.Sprint(os.Getpid()))
	uid := uint32(os.Geteuid())
	before, err := inotifyOf(self, uid)
	if err != nil {
		t.Fatal(err)
	}
	const n = 3
	for range n {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
	}
	after, err := inotifyOf(self, uid)
	if err != nil || after != before+n {
		t.Errorf("got %d instances, %v; want %d", after, err, before+n)
	}
	if other, err := inotifyOf(self, uid+1); err != nil || other != 0 {
		t.Errorf("got %d instances of another user, %v; want 0", other, err)
	}
	use, err := readInotify("/proc", uid)
	if err != nil || use.used < after || use.limit <= 0 {
		t.Errorf("got %+v, %v; want at least %d in use", use, err, after)
	}
}

func TestReadInotify_processThatEnds(t *testing.T) {
	proc := t.TempDir()
	limit := filepath.Join(proc, "sys/fs/inotify/max_user_instances")
	if err := os.MkdirAll(filepath.Dir(limit), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(limit, []byte("128\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	fds := filepath.Join(proc, "17", "fd")
	if err := os.MkdirAll(fds, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"3": "anon_inode:inotify", "4": "anon_inode:[eventpoll]", "5": "/dev/null"} {
		if err := os.Symlink(to, filepath.Join(fds, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(proc, "18"), 0o700); err != nil { // its files are closed
		t.Fatal(err)
	}
	use, err := readInotify(proc, uint32(os.Geteuid()))
	if want := (inotifyUse{1, 128}); err != nil || use != want {
		t.Errorf("got %+v, %v; want %+v", use, err, want)
	}
}
