package main

import (
	"bytes"
	"fmt"
	"go/scanner"
	"go/token"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// printLines prints the lines of the product's code in each part of the checkout: those with at least a part of a Go token, so neither empty lines nor comments.
// Tests, generated files and ovsdn-lab do not count.
func printLines(out io.Writer, dir string) error {
	parts := map[string]int{}
	total := 0
	for _, top := range []string{"cmd", "images", "pkg"} {
		err := filepath.WalkDir(filepath.Join(dir, top), func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			name, err := filepath.Rel(dir, path)
			if err != nil {
				return err
			}
			name = filepath.ToSlash(name)
			if d.IsDir() {
				if d.Name() == "testdata" || name == "cmd/ovsdn-lab" {
					return filepath.SkipDir
				}
				return nil
			}
			if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
				return nil
			}
			source, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			n := codeLines(source)
			parts[part(name)] += n
			total += n
			return nil
		})
		if err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		fmt.Fprintf(out, "%-24s %7d\n", name, parts[name])
	}
	fmt.Fprintf(out, "%-24s %7d\n", "all", total)
	return nil
}

// part returns the directory that a file is counted in: a package of pkg, of pkg/sdn or of pkg/sdn/node, with those below it; else the top one.
func part(name string) string {
	dirs := strings.Split(filepath.ToSlash(filepath.Dir(name)), "/")
	depth := 1
	switch {
	case strings.HasPrefix(name, "pkg/sdn/node/"):
		depth = 4
	case strings.HasPrefix(name, "pkg/sdn/"):
		depth = 3
	case strings.HasPrefix(name, "pkg/"):
		depth = 2
	}
	return strings.Join(dirs[:min(depth, len(dirs))], "/")
}

// codeLines counts the lines with a part of a token, except the empty ones of raw strings. A generated file has none.
func codeLines(source []byte) int {
	if bytes.HasPrefix(source, []byte("// Code generated")) {
		return 0
	}
	fset := token.NewFileSet()
	file := fset.AddFile("", fset.Base(), len(source))
	var s scanner.Scanner
	s.Init(file, source, nil, 0)
	lines := map[int]bool{}
	for {
		pos, tok, text := s.Scan()
		if tok == token.EOF {
			return len(lines)
		}
		if tok == token.SEMICOLON && text == "\n" {
			continue // an automatic one
		}
		first := file.Line(pos)
		for i, line := range strings.Split(text, "\n") {
			if i == 0 || strings.TrimSpace(line) != "" {
				lines[first+i] = true
			}
		}
	}
}
