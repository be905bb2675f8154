// Package testnames checks that tests exist that scripts run and documents cite by name: `go test -run` succeeds if no test matches.
package testnames

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const root = "../.."

// source are files with references to tests. re captures the groups names, an expression of `go test -run`, and pkg.
type source struct {
	files string
	re    *regexp.Regexp
}

func sources() []source {
	return []source{
		{"Makefile", regexp.MustCompile(`-run '?(?P<names>[^$' ][^' ]*)'? \./(?P<pkg>\S+)`)},
		{"scripts/*.sh", regexp.MustCompile(`(?P<pkg>[a-z/]+) '(?P<names>\^Test[^']+)'`)},
		{"docs/decisions/*.md", regexp.MustCompile("(?P<names>[A-Za-z_/]+)`?\\s+in\\s+`(?P<pkg>(pkg|test)/[a-z/]+)`")},
	}
}

func TestReferencedTestsExist(t *testing.T) {
	count := 0
	for _, s := range sources() {
		for path, text := range read(t, s.files) {
			for _, match := range s.re.FindAllStringSubmatch(text, -1) {
				names, pkg := match[s.re.SubexpIndex("names")], match[s.re.SubexpIndex("pkg")]
				for _, name := range plainNames(names) {
					count++
					if !hasTest(t, pkg, name) {
						t.Errorf("%s: no test of package %s matches Test%s", path, pkg, name)
					}
				}
			}
		}
	}
	if count < 30 {
		t.Errorf("got %d references, want at least 30", count)
	}
}

// plainNames returns the alternatives of the expression without "Test" and without subtests.
func plainNames(expression string) (names []string) {
	for name := range strings.SplitSeq(strings.NewReplacer("^", "", "$", "", "(", "", ")", "", "Test", "").Replace(expression), "|") {
		name, _, _ = strings.Cut(name, "/")
		names = append(names, name)
	}
	return names
}

func hasTest(t *testing.T, pkg, name string) bool {
	t.Helper()
	for _, text := range read(t, pkg+"/*_test.go") {
		if strings.Contains(text, "\nfunc Test"+name) {
			return true
		}
	}
	return false
}

// read returns the content of the files by their paths.
func read(t *testing.T, files string) map[string]string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root, files))
	if err != nil {
		t.Fatal(err)
	}
	content := map[string]string{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		content[path] = string(text)
	}
	return content
}
