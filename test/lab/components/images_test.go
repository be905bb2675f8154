package components

import (
	"archive/tar"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ovsdn/ovsdn/images/image"
)

func TestPodImage(t *testing.T) {
	i := podImage(podContents{
		agnhost: "/cache/agnhost", busybox: "/bin/busybox", iperf3: "/usr/local/bin/iperf3",
		applets:   []string{"busybox", "sh", "nc", "nc"},
		libraries: []string{"/lib/libc.so.6", "/lib/libm.so.6", "/lib/libc.so.6"},
	})
	if i.Ref != PodRef || !slices.Equal(i.Entrypoint, []string{"/agnhost"}) || !slices.Equal(i.Cmd, []string{"pause"}) {
		t.Errorf("image = %+v", i)
	}
	got := map[string]string{}
	for _, f := range i.Files {
		if _, twice := got[f.Path]; twice {
			t.Errorf("%s is given twice", f.Path)
		}
		got[f.Path] = f.Source + f.Target
	}
	want := map[string]string{
		"/agnhost": "/cache/agnhost", "/bin/busybox": "/bin/busybox", "/usr/bin/iperf3": "/usr/local/bin/iperf3",
		"/bin/sh": "/bin/busybox", "/bin/nc": "/bin/busybox",
		"/lib/libc.so.6": "/lib/libc.so.6", "/lib/libm.so.6": "/lib/libm.so.6",
		"/tmp": "", "/root": "", "/uploads": "", "/etc/passwd": "", "/etc/group": "",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

func TestImageIsMadeOnce(t *testing.T) {
	b := checkout(t, hello)
	i := &image.Image{Ref: "localhost/one:lab", Files: []image.File{image.Text("/a", "b")}}
	var steps int
	b.progress = func(string, ...any) { steps++ }
	first, err := b.image(t.Context(), "one.tar", i)
	if err != nil {
		t.Fatal(err)
	}
	second, err := b.image(t.Context(), "one.tar", i)
	if err != nil {
		t.Fatal(err)
	}
	if first != second || steps != 1 {
		t.Errorf("paths %s and %s in %d steps", first, second, steps)
	}
	i.Ref = "localhost/two:lab"
	if third, err := b.image(t.Context(), "one.tar", i); err != nil || third == first {
		t.Errorf("another reference gives %s, %v", third, err)
	}
}

// TestPodImageRuns starts the image's programs with only the kernel of this machine.
func TestPodImageRuns(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	contents, err := findPodContents(t.Context(), self) // agnhost itself takes long to build, and is static
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	unpack(t, podImage(contents), root)
	for _, script := range []string{
		"test $(id -u) = 0 && iperf3 --version",
		"for p in sh nc ping wget ip cat ls sleep nslookup arping echo env grep ps hostname traceroute id true false tr head tail " +
			"dd seq date timeout awk sed mount stat touch mkdir rm arp netstat route ifconfig kill test wc sort uniq xargs httpd vi; " +
			"do test -x $(which $p) || { echo no $p; exit 1; }; done",
	} {
		command := exec.CommandContext(t.Context(), "/bin/sh", "-c", script)
		command.Dir = "/"
		command.Env = []string{pathEnv}
		command.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
		if out, err := command.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", script, err, out)
		}
	}
}

// unpack lays the image's only layer out in root.
func unpack(t *testing.T, i *image.Image, root string) {
	t.Helper()
	r, w := io.Pipe()
	go func() { w.CloseWithError(i.Write(w)) }()
	defer r.Close()
	archive := tar.NewReader(r)
	for {
		h, err := archive.Next()
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(h.Name, "blobs/sha256/") { // the layer comes first
			break
		}
	}
	layer := tar.NewReader(archive)
	for {
		h, err := layer.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(root, h.Name)
		switch h.Typeflag {
		case tar.TypeDir:
			err = os.MkdirAll(path, fs.FileMode(h.Mode).Perm())
		case tar.TypeSymlink:
			err = os.Symlink(h.Linkname, path)
		default:
			err = writeProgram(path, layer)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

func writeProgram(path string, content io.Reader) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	return errors.Join(err, f.Close())
}

func TestSharedLibraries(t *testing.T) {
	shell, err := filepath.EvalSymlinks("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	libraries, err := sharedLibraries(t.Context(), shell)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(libraries, func(l string) bool { return strings.HasPrefix(filepath.Base(l), "libc.") }) {
		t.Errorf("the libraries of %s are %q, without libc", shell, libraries)
	}
	pause := filepath.Join(t.TempDir(), "pause")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", pause, "./pause")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if libraries, err := sharedLibraries(t.Context(), pause); err != nil || len(libraries) != 0 {
		t.Errorf("the libraries of a static program are %q, %v", libraries, err)
	}
	if _, err := sharedLibraries(t.Context(), "images_test.go"); err == nil {
		t.Error("no error for a file that is no program")
	}
}

func TestParseLdd(t *testing.T) {
	tests := []struct {
		name, out string
		want      []string
	}{
		{"program", `	linux-vdso.so.1 (0x00007ffd5e4906000)
	libiperf.so.0 => /lib/x86_64-linux-gnu/libiperf.so.0 (0x00007fd5e48bf000)
	/lib64/ld-linux-x86-64.so.2 (0x00007fd5e4908000)
`, []string{"/lib/x86_64-linux-gnu/libiperf.so.0", "/lib64/ld-linux-x86-64.so.2"}},
		{"linker with a name", "ld.so => /lib/ld.so (0x1)\n", []string{"/lib/ld.so"}},
		{"blank in the path", "a.so => /opt/a b/a.so (0x1)\n", []string{"/opt/a b/a.so"}},
		{"static", "\tstatically linked\n", nil},
		{"nothing", "", nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := parseLdd(test.out)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("libraries (-want +got):\n%s", diff)
			}
		})
	}
	if _, err := parseLdd("\tlibiperf.so.0 => not found\n"); err == nil || !strings.Contains(err.Error(), "libiperf.so.0") {
		t.Errorf("error = %v, want one that names the missing library", err)
	}
}

func FuzzParseLdd(f *testing.F) {
	f.Add("\tlinux-vdso.so.1 (0x00007ffd5e4906000)\n\tlibm.so.6 => /lib/libm.so.6 (0x1)\n")
	f.Add("a => not found\n")
	f.Add(" => /../x (0x\n/")
	f.Fuzz(func(t *testing.T, out string) {
		libraries, err := parseLdd(out)
		if err != nil {
			return
		}
		for _, l := range libraries {
			if !filepath.IsAbs(l) || filepath.Clean(l) != l {
				t.Errorf("%q is no clean absolute path", l)
			}
		}
	})
}
