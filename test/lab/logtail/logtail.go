// Package logtail quotes the end of a log file in an error, so that the reader need not look for it.
package logtail

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
)

const (
	lines    = 12
	maxBytes = 8 << 10
)

// Last returns the file's name and its last lines, or the reason why it can't.
func Last(path string) string {
	content, err := end(path)
	if err != nil {
		return fmt.Sprintf("(its log cannot be read: %v)", err)
	}
	if len(content) == 0 {
		return fmt.Sprintf("(its log %s is empty)", path)
	}
	all := strings.Split(string(content), "\n")
	if len(all) > lines {
		all = all[len(all)-lines:]
	}
	return fmt.Sprintf("the end of its log %s:\n    %s", path, strings.Join(all, "\n    "))
}

func end(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	content, err := io.ReadAll(io.NewSectionReader(f, max(0, info.Size()-maxBytes), maxBytes))
	if err != nil {
		return nil, err
	}
	return bytes.TrimSpace(content), nil
}
