package image

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// LayOut writes the same files as archives contain, times included.
func TestLayOut(t *testing.T) {
	files := []File{
		Program("/run-me", sourceFile(t, "content")), // beside the root's folders: nothing else makes the root
		Text("/etc/deep/er/motd", "hello\n"),
		Dir("/var/tmp", 0o777|fs.ModeSticky),
		Symlink("/bin", "usr/bin"),
	}
	dir := filepath.Join(t.TempDir(), "not", "there", "yet")
	if err := LayOut(files, dir); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	if err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		if !info.ModTime().Equal(epoch()) {
			t.Errorf("%s is of %v", path, info.ModTime())
		}
		what := info.Mode().String()
		switch info.Mode().Type() {
		case fs.ModeSymlink:
			var target string
			target, err = os.Readlink(path)
			what += " " + target
		case 0:
			var content []byte
			content, err = os.ReadFile(path)
			what += " " + string(content)
		}
		got[path[len(dir):]] = what
		return err
	}); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"/run-me": "-rwxr-xr-x content", "/bin": "Lrwxrwxrwx usr/bin", "/etc": "drwxr-xr-x", "/etc/deep": "drwxr-xr-x", "/etc/deep/er": "drwxr-xr-x",
		"/etc/deep/er/motd": "-rw-r--r-- hello\n", "/var": "drwxr-xr-x", "/var/tmp": "dtrwxrwxrwx",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if err := LayOut(files, dir); err == nil {
		t.Error("an existing file was overwritten")
	}
}
