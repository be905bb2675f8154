package main

import (
	"bufio"
	"bytes"
	"cmp"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"
)

// tally is the count of one directory.
type tally struct {
	lines, words int
}

// occurrence is a hit at its place.
type occurrence struct {
	hit
	path string
	line int
}

// report is the count of the whole project, by directory.
type report struct {
	dirs map[string]*tally
	hits []occurrence
}

// count counts the words in every file of the project.
func count(root string) (*report, error) {
	vocabulary, err := readWords(filepath.Join(root, wordsFile))
	if err != nil {
		return nil, err
	}
	var names []string
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			if isSkipped(name) {
				return filepath.SkipDir
			}
			return nil
		}
		if isCounted(name) {
			names = append(names, name)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	files := make([]file, len(names))
	var reading errgroup.Group
	reading.SetLimit(runtime.GOMAXPROCS(0))
	for i, name := range names {
		reading.Go(func() (err error) {
			files[i], err = vocabulary.read(root, name)
			return err
		})
	}
	if err := reading.Wait(); err != nil {
		return nil, err
	}
	r := &report{dirs: map[string]*tally{}}
	for i, name := range names {
		r.add(directory(name), files[i])
	}
	return r, nil
}

// isSkipped reports whether the directory has nothing that is written by hand, or the words themselves.
func isSkipped(dir string) bool {
	base := filepath.Base(dir)
	return base == "testdata" || base == "bin" || dir != "." && strings.HasPrefix(base, ".") || dir == filepath.Dir(wordsFile)
}

// isCounted reports whether the file is a source or a document.
func isCounted(name string) bool {
	switch filepath.Base(name) {
	case "Makefile", "Dockerfile", "ovs-start":
		return true
	}
	return slices.Contains([]string{".go", ".md", ".sh", ".yaml", ".yml", ".env", ".js", ".html"}, filepath.Ext(name))
}

// directory returns the directory that a file is counted in: two levels of pkg and pkg/sdn/node, else the top one.
func directory(name string) string {
	parts := strings.Split(filepath.ToSlash(name), "/")
	switch {
	case len(parts) == 1:
		return "."
	case parts[0] != "pkg":
		return parts[0]
	case parts[1] == "sdn" && len(parts) > 3 && parts[2] == "node":
		return "pkg/sdn/node"
	default:
		return strings.Join(parts[:2], "/")
	}
}

// file is the count of one file.
type file struct {
	lines int
	hits  []occurrence
}

// read counts the words in a file, and none in a generated one.
func (v *vocabulary) read(root, name string) (file, error) {
	content, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		return file{}, err
	}
	if bytes.HasPrefix(content, []byte("// Code generated")) {
		return file{}, nil
	}
	lines := strings.Split(strings.TrimSuffix(string(content), "\n"), "\n")
	f := file{lines: len(lines)}
	for i, line := range lines {
		for _, h := range v.find(line) {
			f.hits = append(f.hits, occurrence{h, filepath.ToSlash(name), i + 1})
		}
	}
	return f, nil
}

func (r *report) add(dir string, f file) {
	if r.dirs[dir] == nil {
		r.dirs[dir] = &tally{}
	}
	r.dirs[dir].lines += f.lines
	r.dirs[dir].words += len(f.hits)
	r.hits = append(r.hits, f.hits...)
}

// list prints the occurrences in files whose path starts with the prefix.
func (r *report) list(out io.Writer, prefix string) {
	for _, h := range r.hits {
		if prefix == "." || strings.HasPrefix(h.path, prefix) {
			_, _ = fmt.Fprintf(out, "%s:%d: %q; write: %s\n", h.path, h.line, h.found, h.replacement)
		}
	}
}

// summary prints the count of each directory and of the project.
func (r *report) summary(out io.Writer) {
	var all tally
	_, _ = fmt.Fprintf(out, "%-16s %8s %7s %10s\n", "directory", "lines", "words", "per 1,000")
	for _, dir := range slices.Sorted(maps.Keys(r.dirs)) {
		t := r.dirs[dir]
		all.lines += t.lines
		all.words += t.words
		_, _ = fmt.Fprintf(out, "%-16s %8d %7d %10.2f\n", dir, t.lines, t.words, t.rate())
	}
	_, _ = fmt.Fprintf(out, "%-16s %8d %7d %10.2f\n", "total", all.lines, all.words, all.rate())
}

func (t tally) rate() float64 { return 1000 * float64(t.words) / float64(max(t.lines, 1)) }

// lower returns the budget with no directory above its current count. A directory that has no budget gets its count.
func (r *report) lower(budget map[string]int) map[string]int {
	lowered := map[string]int{}
	for dir, t := range r.dirs {
		lowered[dir] = t.words
		if allowed, ok := budget[dir]; ok {
			lowered[dir] = min(allowed, t.words)
		}
	}
	return lowered
}

// readBudget reads the highest count of each directory.
func readBudget(path string) (map[string]int, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	budget := map[string]int{}
	lines := bufio.NewScanner(bytes.NewReader(content))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 || fields[0] == "#" {
			continue
		}
		if len(fields) != 2 {
			return nil, fmt.Errorf("%s: %q; write DIRECTORY COUNT", path, lines.Text())
		}
		if budget[fields[0]], err = strconv.Atoi(fields[1]); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	return budget, lines.Err()
}

func writeBudget(path string, budget map[string]int) error {
	var b bytes.Buffer
	b.WriteString("# The highest count of words of words.txt in each directory. `go run ./test/language -write` lowers it; it is never raised.\n")
	dirs := slices.Collect(maps.Keys(budget))
	slices.SortFunc(dirs, cmp.Compare)
	for _, dir := range dirs {
		fmt.Fprintf(&b, "%s %d\n", dir, budget[dir])
	}
	return os.WriteFile(path, b.Bytes(), 0o644)
}
