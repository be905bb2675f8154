package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
)

// word is an expression to avoid, with its replacement.
type word struct {
	expr        *regexp.Regexp
	replacement string
}

// vocabulary finds words to avoid.
type vocabulary struct {
	words []word
	allow []*regexp.Regexp
	camel *regexp.Regexp
}

// readWords reads a file of words. Its comment describes the format.
func readWords(path string) (*vocabulary, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	v := &vocabulary{camel: regexp.MustCompile(`([a-z0-9])([A-Z])`)}
	for i, line := range strings.Split(string(content), "\n") {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		allowed, isAllow := strings.CutPrefix(line, "allow ")
		pattern, replacement, isWord := strings.Cut(line, " => ")
		if isAllow {
			pattern = allowed
		} else if !isWord {
			return nil, fmt.Errorf("%s:%d: no replacement; write EXPRESSION => REPLACEMENT", path, i+1)
		}
		expr, err := regexp.Compile(`\b(?:` + pattern + `)(?:\b|$)`)
		if isAllow {
			expr, err = regexp.Compile(`\b(?:` + pattern + `)`)
		}
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, i+1, err)
		}
		if isAllow {
			v.allow = append(v.allow, expr)
		} else {
			v.words = append(v.words, word{expr, replacement})
		}
	}
	return v, nil
}

// hit is one occurrence of a word to avoid.
type hit struct {
	found, replacement string
}

// find returns the occurrences in one line.
func (v *vocabulary) find(line string) (hits []hit) {
	line = v.camel.ReplaceAllString(line, "$1 $2")
	line = strings.ToLower(strings.ReplaceAll(line, "_", " "))
	for _, allowed := range v.allow {
		line = allowed.ReplaceAllString(line, ".")
	}
	for _, w := range v.words {
		for _, found := range w.expr.FindAllString(line, -1) {
			hits = append(hits, hit{found, w.replacement})
		}
	}
	return hits
}
