package components

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const hello = `package main

import "fmt"

var version = "none"

func main() { fmt.Println("hello", version) }
`

// checkout makes a source folder with one tiny module where the lab's are, and returns a builder for it.
func checkout(t *testing.T, source string) *builder {
	t.Helper()
	root := t.TempDir()
	for name, content := range map[string]string{
		"kube/go.mod":   "module example.test/kube\n\nrequire k8s.io/kubernetes v1.2.3\n",
		"hello/go.mod":  "module example.test/hello\n\ngo 1.26.0\n",
		"hello/main.go": source,
	} {
		path := filepath.Join(root, "test", "lab", "components", name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	b, err := newBuilder(t.Context(), Options{SourceDir: root, CacheDir: filepath.Join(root, "cache"), Progress: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestProgramIsBuiltOnce(t *testing.T) {
	b := checkout(t, hello)
	var steps []string
	b.progress = func(format string, args ...any) { steps = append(steps, fmt.Sprintf(format, args...)) }
	p := program{name: "hello", dir: "hello", pkg: ".", ldflags: "-X main.version=v7"}
	path, err := b.program(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), path).Output()
	if err != nil {
		t.Fatal(err)
	}
	if string(out) != "hello v7\n" {
		t.Errorf("output of the program: %q", out)
	}
	if len(steps) != 2 {
		t.Errorf("progress was %q, want a line before and one after", steps)
	}

	b.toolchain.path = "/nonexistent" // so that a second build would fail
	again, err := b.program(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	if again != path || len(steps) != 2 {
		t.Errorf("second time: %s, not %s; progress %q", again, path, steps)
	}
}

func TestProgramFollowsItsInputs(t *testing.T) {
	b := checkout(t, hello)
	p := program{name: "hello", dir: "hello", pkg: "."}
	seen := map[string]string{}
	keyed := func(what string) string {
		t.Helper()
		k, err := b.programKey(p)
		if err != nil {
			t.Fatal(err)
		}
		if same, ok := seen[k.String()]; ok {
			t.Errorf("%s gives the key of %s", what, same)
		}
		seen[k.String()] = what
		return k.String()
	}
	edit := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(b.modules, "hello", name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	keyed("the first build")
	edit("main.go", strings.Replace(hello, "hello", "goodbye", 1))
	keyed("another source")
	edit("more.go", "package main\n")
	keyed("one more source")
	edit("go.mod", "module example.test/goodbye\n")
	keyed("another go.mod")
	edit("go.sum", "example.test/module v1.0.0 h1:x\n")
	keyed("another go.sum")
	p.ldflags = "-X main.version=v8"
	keyed("another linker flag")
	p.tags = "seccomp"
	keyed("another tag")
	p.cgo = true
	keyed("C allowed")
	b.toolchain.version = "go9.9"
	last := keyed("another Go")

	edit("main_test.go", "package main\n")
	edit("README", "not compiled\n")
	k, err := b.programKey(p)
	if err != nil {
		t.Fatal(err)
	}
	if k.String() != last {
		t.Error("what is not compiled changed the key")
	}
}

func TestCompilerErrorNamesTheLog(t *testing.T) {
	b := checkout(t, "package main\n\nfunc main() { undefinedThing() }\n")
	_, err := b.program(t.Context(), program{name: "hello", dir: "hello", pkg: "."})
	if err == nil {
		t.Fatal("no error")
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		t.Errorf("error %v does not wrap the compiler's", err)
	}
	logFile := filepath.Join(b.cache.dir, "logs", "hello.log")
	for _, want := range []string{logFile, "undefined: undefinedThing", "bootstrap.sh"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not contain %q", err, want)
		}
	}
	log, err := os.ReadFile(logFile)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(log), "CGO_ENABLED=0") || !strings.Contains(string(log), "-trimpath") {
		t.Errorf("the log does not have the build command:\n%s", log)
	}
	if diff := cmp.Diff([]string{"logs"}, folders(t, b.cache)); diff != "" {
		t.Errorf("left behind (-want +got):\n%s", diff)
	}
}

func TestBuildEndsWithContext(t *testing.T) {
	b := checkout(t, hello)
	ended := errors.New("the caller has ended")
	ctx, cancel := context.WithCancelCause(t.Context())
	b.progress = func(string, ...any) { cancel(ended) } // as the build starts
	if _, err := b.program(ctx, program{name: "hello", dir: "hello", pkg: "."}); !errors.Is(err, ended) {
		t.Errorf("error = %v, want the caller's reason", err)
	}
	if diff := cmp.Diff([]string{"logs"}, folders(t, b.cache)); diff != "" {
		t.Errorf("left behind (-want +got):\n%s", diff)
	}
}

func TestBuildNamesTheComponent(t *testing.T) {
	b := checkout(t, hello)
	source := filepath.Join(b.modules, "..", "..", "..")
	_, err := Build(t.Context(), Options{SourceDir: source, CacheDir: b.cache.dir})
	if err == nil || !strings.HasPrefix(err.Error(), "build kube: ") {
		t.Errorf("error = %v, want one about kube, which has no source here", err)
	}
}

func TestBadSourceDir(t *testing.T) {
	dir := t.TempDir()
	_, err := Build(t.Context(), Options{SourceDir: dir, CacheDir: t.TempDir()})
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), dir+" is no checkout") {
		t.Errorf("got error %v, want that %s is no checkout", err, dir)
	}
}

func TestRequiredVersion(t *testing.T) {
	tests := []struct{ goMod, want string }{
		{"require k8s.io/kubernetes v1.36.3\n", "v1.36.3"},
		{"module m\n\nrequire (\n\tk8s.io/kubectl v0.0.0\n\tk8s.io/kubernetes v1.36.3 // indirect\n)\n", "v1.36.3"},
		{"require k8s.io/kubernetes/more v1.36.3\n", ""},
		{"replace k8s.io/kubernetes => k8s.io/kubernetes v1.36.3\n", ""},
		{"", ""},
	}
	for _, test := range tests {
		got, err := requiredVersion([]byte(test.goMod), "k8s.io/kubernetes")
		if got != test.want || (err == nil) != (test.want != "") {
			t.Errorf("requiredVersion(%q) = %q, %v; want %q", test.goMod, got, err, test.want)
		}
	}
}

func TestKubePrintsItsVersion(t *testing.T) {
	goMod, err := os.ReadFile(filepath.Join("kube", "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	version, err := requiredVersion(goMod, "k8s.io/kubernetes")
	if err != nil {
		t.Fatal(err)
	}
	major, rest, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	minor, _, _ := strings.Cut(rest, ".")
	for _, want := range []string{".gitVersion=" + version + " ", ".gitMajor=" + major + " ", ".gitMinor=" + minor + " "} {
		if flags := strings.Join(kube(version).flags(), " "); strings.Count(flags, want) != 2 {
			t.Errorf("flags %q have %q %d times, want once for each of two packages", flags, want, strings.Count(flags, want))
		}
	}
}

func TestLastLines(t *testing.T) {
	long := strings.Repeat("x", 10<<10)
	tests := []struct {
		text string
		n    int
		want string
	}{
		{"", 3, ""},
		{"a\nb\n", 3, "a\nb"},
		{"a\nb\nc\nd\n", 3, "b\nc\nd"},
		{"a\nb", 1, "b"},
		{long + "\nend\n", 1, "end"},
		{long, 1, long[:8<<10]},
	}
	for _, test := range tests {
		path := filepath.Join(t.TempDir(), "log")
		if err := os.WriteFile(path, []byte(test.text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := lastLines(path, test.n)
		if err != nil {
			t.Fatal(err)
		}
		if got != test.want {
			t.Errorf("lastLines(%.20q…, %d) = %.20q…, want %.20q…", test.text, test.n, got, test.want)
		}
	}
}
