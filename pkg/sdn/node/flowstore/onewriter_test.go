package flowstore

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// No other package of the product runs transactions or replaces flows (docs/decisions/0010): a transaction comes from NewTransaction or is of the type
// ovs.Transaction, and a replacement has the type ovs.State.
func TestOneWriter(t *testing.T) {
	const root = "../../../.."
	var got []string
	for _, dir := range []string{"pkg/sdn", "cmd"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				return err
			}
			name, err := filepath.Rel(root, path)
			for _, use := range uses(file) {
				got = append(got, fmt.Sprintf("%s %s", filepath.ToSlash(filepath.Dir(name)), use))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	slices.Sort(got)
	want := []string{
		"pkg/sdn/node/flowstore NewTransaction", "pkg/sdn/node/flowstore ovs.State", "pkg/sdn/node/flowstore ovs.Transaction",
		"pkg/sdn/node/hostports NewTransaction", // of nftables
		"pkg/sdn/node/restorewait ovs.State",    // the bridge of the store, whose Replace it wraps
	}
	if diff := cmp.Diff(want, slices.Compact(got)); diff != "" {
		t.Errorf("packages that write to Open vSwitch (-want +got):\n%s", diff)
	}
}

// uses returns what a file uses to write to Open vSwitch.
func uses(file *ast.File) (found []string) {
	ast.Inspect(file, func(n ast.Node) bool {
		selector, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		x, _ := selector.X.(*ast.Ident)
		switch name := selector.Sel.Name; {
		case name == "NewTransaction":
			found = append(found, name)
		case x != nil && x.Name == "ovs" && (name == "Transaction" || name == "State"):
			found = append(found, "ovs."+name)
		}
		return true
	})
	return found
}
