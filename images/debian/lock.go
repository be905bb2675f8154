// Package debian provides the files of Debian packages for images, pinned by version and SHA-256. It downloads packages with apt and
// unpacks them itself; it installs nothing and runs no script of a package.
package debian

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
)

// Pin names one package file.
type Pin struct {
	Name    string
	Version string
	SHA256  string // of the .deb, in hex
}

// Lock is the content of a lock file: one package a line, "NAME VERSION SHA256", and comments after #.
type Lock []Pin

// ReadLock reads a lock file.
func ReadLock(path string) (Lock, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("lock file: %w", err)
	}
	defer f.Close()
	l, err := parseLock(f)
	if err != nil {
		return nil, fmt.Errorf("lock file %s: %w", path, err)
	}
	return l, nil
}

// Names and versions are Debian's (policy manual, sections 5.6.1 and 5.6.12). They become arguments of apt, and names of files.
var pinSyntax = [...]*regexp.Regexp{ //nolint:gochecknoglobals // constant, but for the type
	regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]+$`),
	regexp.MustCompile(`^([0-9]+:)?[0-9][A-Za-z0-9.+~-]*$`),
	regexp.MustCompile(`^[0-9a-f]{64}$`),
}

func parseLock(r io.Reader) (Lock, error) {
	var l Lock
	var errs []error
	seen := map[string]bool{}
	lines := bufio.NewScanner(r)
	for number := 1; lines.Scan(); number++ {
		line, _, _ := strings.Cut(lines.Text(), "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		if err := checkPin(words); err != nil {
			errs = append(errs, fmt.Errorf("line %d: %w", number, err))
			continue
		}
		if seen[words[0]] {
			errs = append(errs, fmt.Errorf("line %d: duplicate package %s", number, words[0]))
		}
		seen[words[0]] = true
		l = append(l, Pin{Name: words[0], Version: words[1], SHA256: words[2]})
	}
	return l, errors.Join(append(errs, lines.Err())...)
}

func checkPin(words []string) error {
	if len(words) != len(pinSyntax) {
		return fmt.Errorf("want NAME VERSION SHA256, not %d words", len(words))
	}
	for i, syntax := range pinSyntax {
		if !syntax.MatchString(words[i]) {
			return fmt.Errorf("%q does not match %s", words[i], syntax)
		}
	}
	return nil
}

// String is the lock as lines of a file.
func (l Lock) String() string {
	var s strings.Builder
	for _, p := range l {
		fmt.Fprintf(&s, "%s %s %s\n", p.Name, p.Version, p.SHA256)
	}
	return s.String()
}

// Names of the packages, in the lock's order.
func (l Lock) Names() []string {
	var names []string
	for _, p := range l {
		names = append(names, p.Name)
	}
	return names
}
