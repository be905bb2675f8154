package imports

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write testdata/indirect.txt") //nolint:gochecknoglobals // a test binary parses its flags before any test runs

const module = "github.com/ovsdn/ovsdn/"

// pure returns the packages without I/O, which depguard's rule pure lists: the model of OpenFlow, and all that compiles API objects to it.
func pure(t *testing.T) []string {
	t.Helper()
	return depguard(t)["pure"].directories()
}

// withTypes returns the pure packages whose dependencies may do I/O: they use types of the flow store and of package veth.
func withTypes() []string { return []string{"pkg/sdn/node/podflows", "pkg/sdn/node/podinterface"} }

// doesIO reports whether a package of the standard library or of golang.org/x does I/O. Package net counts as its types are
// used: TestNetTypesOnly.
func doesIO(path string) bool {
	io := []string{"os", "os/exec", "os/signal", "os/user", "net/http", "net/rpc", "syscall", "plugin", "database/sql"}
	return slices.Contains(io, path) || strings.HasPrefix(path, "golang.org/x/sys/")
}

type goPackage struct {
	ImportPath string
	Imports    []string
	Standard   bool
}

// dependencies returns the packages that those of the directories depend on, themselves included.
func dependencies(t *testing.T, dirs ...string) []goPackage {
	t.Helper()
	args := []string{"list", "-deps", "-json=ImportPath,Imports,Standard"}
	for _, dir := range dirs {
		args = append(args, module+dir)
	}
	cmd := exec.CommandContext(t.Context(), "go", args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var packages []goPackage
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		switch err := decoder.Decode(&p); {
		case errors.Is(err, io.EOF):
			return packages
		case err != nil:
			t.Fatal(err)
		}
		packages = append(packages, p)
	}
}

// Packages outside of the standard library that do I/O reach the pure packages only by go-openvswitch, apimachinery and types of CNI, which they use for types.
func TestIndirectIO(t *testing.T) {
	var got []string
	for _, p := range dependencies(t, slices.DeleteFunc(pure(t), func(dir string) bool { return slices.Contains(withTypes(), dir) })...) {
		if p.Standard || !slices.ContainsFunc(p.Imports, doesIO) {
			continue
		}
		if strings.HasPrefix(p.ImportPath, module) {
			t.Errorf("%s imports a package that does I/O; move the I/O to pkg/ovs/native or to the agent", p.ImportPath)
		}
		got = append(got, p.ImportPath)
	}
	slices.Sort(got)
	const file = "testdata/indirect.txt"
	if *update {
		if err := os.WriteFile(file, []byte(strings.Join(got, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Fields(string(want)), got); diff != "" {
		t.Errorf("packages with I/O that the packages without I/O depend on (-want +got):\n%s\nUse another package, or run go test ./test/imports -update", diff)
	}
}

// The pure packages use the types and parsers of package net, not its connections.
func TestNetTypesOnly(t *testing.T) {
	allowed := []string{"HardwareAddr", "IPNet", "IP", "IPMask", "ParseMAC", "ParseCIDR", "CIDRMask"}
	for _, dir := range pure(t) {
		files, err := filepath.Glob(filepath.Join("..", "..", dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: got no files, error %v", dir, err)
		}
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			fset := token.NewFileSet()
			file, err := parser.ParseFile(fset, name, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if s, ok := n.(*ast.SelectorExpr); ok {
					if x, ok := s.X.(*ast.Ident); ok && x.Name == "net" && !slices.Contains(allowed, s.Sel.Name) {
						t.Errorf("%s: net.%s may do I/O; move it to pkg/ovs/native or to the agent", fset.Position(s.Pos()), s.Sel.Name)
					}
				}
				return true
			})
		}
	}
}

// The oracle shares no code with what it is compared with: it depends on no other package of the project.
func TestOracleIsIndependent(t *testing.T) {
	const oracle = "pkg/sdn/oracle"
	for _, p := range dependencies(t, oracle) {
		if strings.HasPrefix(p.ImportPath, module) && p.ImportPath != module+oracle {
			t.Errorf("%s depends on %s; a common mistake would not be found", oracle, p.ImportPath)
		}
	}
}
