package checkout

import (
	"os"
	"path/filepath"
	"testing"
)

func TestRoot(t *testing.T) {
	root := t.TempDir()
	write := func(dir, module string) string {
		t.Helper()
		dir = filepath.Join(root, dir)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte("// a comment\nmodule "+module+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	want := write("tree", module)
	if err := os.MkdirAll(filepath.Join(want, "test", "lab"), 0o755); err != nil {
		t.Fatal(err)
	}
	// The modules inside the tree are not its root.
	inner := write("tree/inner", module+"/inner")
	copied := write("tree/copied", module)
	foreign := write("foreign", "example.test/other")

	for _, start := range []string{want, inner, copied} {
		got, err := Root(start)
		if err != nil || got != want {
			t.Errorf("Root(%s) = %q, %v, want %q", start, got, err, want)
		}
	}
	if got, err := Root(foreign); err == nil {
		t.Errorf("Root(%s) = %q, want an error", foreign, got)
	}
}
