package debian

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ovsdn/ovsdn/images/image"
)

// pack creates a package with the files, and returns its path.
func pack(t *testing.T, name string, files map[string]string) string {
	t.Helper()
	tree, deb := t.TempDir(), filepath.Join(t.TempDir(), name+".deb")
	files["DEBIAN/control"] = "Package: " + name + "\nVersion: 1:2.3-4\nArchitecture: all\nMaintainer: Test <test@example.com>\nDescription: a package\n"
	for path, content := range files {
		at := filepath.Join(tree, path)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		target, link := strings.CutPrefix(content, "-> ")
		if link {
			if err := os.Symlink(target, at); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := os.WriteFile(at, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.CommandContext(t.Context(), "dpkg-deb", "--build", "--root-owner-group", tree, deb).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return deb
}

// listing has the files but no folders: their content, or where they point.
func listing(files []image.File) map[string]string {
	all := map[string]string{}
	for _, f := range files {
		switch f.Mode.Type() {
		case fs.ModeDir:
		case fs.ModeSymlink:
			all[f.Path] = "-> " + f.Target
		default:
			all[f.Path] = string(f.Content)
		}
	}
	return all
}

func TestUnpack(t *testing.T) {
	one := pack(t, "one", map[string]string{
		"bin/tool": "tool", "lib/x/lib.so": "-> lib.so.1", "usr/lib/x/lib.so.1": "library", "var/run/one/state": "state",
		"usr/share/doc/one/copyright": "licence", "usr/share/doc/one/README": "long", "usr/share/man/man1/tool.1": "manual", "usr/lib/x/gconv/A.so": "",
	})
	two := pack(t, "two", map[string]string{"usr/bin/other": "other"})
	files, err := Unpack(t.Context(), []string{one, two})
	if err != nil {
		t.Fatal(err)
	}
	got := listing(files)
	for _, name := range []string{"one", "two"} {
		at := "/var/lib/dpkg/status.d/" + name
		if !strings.Contains(got[at], "Package: "+name+"\n") || !strings.Contains(got[at], "Version: 1:2.3-4\n") {
			t.Errorf("%s is %q", at, got[at])
		}
		delete(got, at)
	}
	want := map[string]string{
		"/bin": "-> usr/bin", "/lib": "-> usr/lib", "/lib64": "-> usr/lib64", "/sbin": "-> usr/sbin", "/var/run": "-> ../run",
		"/usr/bin/tool": "tool", "/usr/bin/other": "other", "/usr/lib/x/lib.so": "-> lib.so.1", "/usr/lib/x/lib.so.1": "library",
		"/run/one/state": "state", "/usr/share/doc/one/copyright": "licence",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

func TestPackagesWithTheSameFile(t *testing.T) {
	one := pack(t, "one", map[string]string{"bin/tool": "a"})
	two := pack(t, "two", map[string]string{"usr/bin/tool": "b"})
	if _, err := Unpack(t.Context(), []string{one, two}); err == nil || !strings.Contains(err.Error(), "two packages have /usr/bin/tool") {
		t.Errorf("error = %v", err)
	}
}

func TestWhatIsNoPackage(t *testing.T) {
	deb := filepath.Join(t.TempDir(), "a.deb")
	if err := os.WriteFile(deb, []byte("no archive"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Unpack(t.Context(), []string{deb}); err == nil || !strings.Contains(err.Error(), deb) {
		t.Errorf("error %v does not name the file", err)
	}
}

// A package in the store is used without apt if its sum is right.
func TestStore(t *testing.T) {
	deb := pack(t, "one", map[string]string{"bin/tool": "a"})
	p, err := identify(t.Context(), deb)
	if err != nil {
		t.Fatal(err)
	}
	if want := (Pin{"one", "1:2.3-4", p.SHA256}); p != want {
		t.Errorf("the package is %v, want %v", p, want)
	}
	s := Store{Dir: t.TempDir()}
	content, err := os.ReadFile(deb)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.path(p.SHA256), content, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", t.TempDir()) // where there is no apt
	paths, err := s.Fetch(t.Context(), Lock{p})
	if err != nil || len(paths) != 1 {
		t.Fatalf("paths %v, error %v", paths, err)
	}
	if err := os.WriteFile(s.path(p.SHA256), content[1:], 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Fetch(t.Context(), Lock{p}); !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("a damaged file: error %v, want that apt is missing", err)
	}
}

func TestOtherContentOfTheSameVersion(t *testing.T) {
	pinned, got := Pin{"one", "1", sum}, Pin{"one", "1", strings.Repeat("0", 64)}
	if err := verify(Lock{pinned}, []Pin{pinned}); err != nil {
		t.Errorf("the pinned one: %v", err)
	}
	if err := verify(Lock{pinned}, []Pin{got}); err == nil || !strings.Contains(err.Error(), "package one: got version 1 with SHA-256 000") {
		t.Errorf("another one: error %v", err)
	}
}

func TestClosed(t *testing.T) {
	self, err := exec.LookPath("dpkg-deb")
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	program := image.File{Path: "/usr/bin/dpkg-deb", Mode: 0o755, Content: content}
	if err := CheckLibraries([]image.File{program}); err == nil || !strings.Contains(err.Error(), "/usr/bin/dpkg-deb needs libc.so.6") {
		t.Errorf("a program without its libraries: error %v", err)
	}
	if err := CheckLibraries([]image.File{image.Text("/usr/bin/script", "#!/bin/sh\n")}); err != nil {
		t.Errorf("a script: %v", err)
	}
}
