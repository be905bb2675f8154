package atomicfile

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// wantFile checks the file's content and mode, and that the directory has no other file.
func wantFile(t *testing.T, path, content string, mode fs.FileMode) {
	t.Helper()
	if got, err := os.ReadFile(path); err != nil || string(got) != content {
		t.Errorf("got content %q, %v, want %q", got, err, content)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != mode {
		t.Errorf("got file %v, %v, want mode %v", info, err, mode)
	}
	if files, err := os.ReadDir(filepath.Dir(path)); err != nil || len(files) != 1 {
		t.Errorf("got files %v, %v, want the file only", files, err)
	}
}

func TestWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f.json")
	for _, tc := range []struct {
		content string
		mode    fs.FileMode
	}{{"long content", 0o600}, {"short", 0o755}, {"", 0o644}} {
		if err := Write(path, []byte(tc.content), tc.mode); err != nil {
			t.Fatal(err)
		}
		wantFile(t, path, tc.content, tc.mode)
	}
}

// Readers that have the file open read the previous content to its end.
func TestWrite_replacesTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f.json")
	if err := Write(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := Write(path, []byte("new"), 0o600); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(path); err != nil || os.SameFile(before, after) {
		t.Errorf("got the same file, %v, want a new one", err)
	}
}

// The file that a crash left is replaced, with its content and mode.
func TestWrite_afterACrash(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f.json")
	if err := os.WriteFile(tempName(path), []byte("an interrupted write of long content"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Write(path, []byte("new"), 0o644); err != nil {
		t.Fatal(err)
	}
	wantFile(t, path, "new", 0o644)
}

// A link in place of the temporary file is replaced too, not followed.
func TestWrite_link(t *testing.T) {
	other, path := filepath.Join(t.TempDir(), "other"), filepath.Join(t.TempDir(), "f.json")
	if err := os.WriteFile(other, []byte("other"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(other, tempName(path)); err != nil {
		t.Fatal(err)
	}
	if err := Write(path, []byte("new"), 0o644); err != nil {
		t.Fatal(err)
	}
	wantFile(t, path, "new", 0o644)
	wantFile(t, other, "other", 0o600)
}

// A file that can't be replaced has its previous content, and no temporary file remains.
func TestWrite_failedRename(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f.json")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Write(path, []byte("new"), 0o644); err == nil {
		t.Error("got no error")
	}
	if files, err := os.ReadDir(filepath.Dir(path)); err != nil || len(files) != 1 || !files[0].IsDir() {
		t.Errorf("got files %v, %v, want the directory only", files, err)
	}
}

// A limit of the process stands for a full disk: the first part of the content is written.
func TestWrite_fullDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f.json")
	if err := Write(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 4, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	err := Write(path, []byte("content that is too long"), 0o600)
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &limit); err != nil {
		t.Fatal(err)
	}
	if err == nil {
		t.Error("got no error")
	}
	wantFile(t, path, "old", 0o600)
}

func TestWrite_noDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "missing")
	if err := Write(filepath.Join(dir, "f.json"), nil, 0o600); err == nil {
		t.Error("got no error")
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("got a directory, want the error only: the caller decides its mode")
	}
}
