package reference

import (
	"fmt"
	"strings"
)

// Replace replaces the generated sections of a document. A section is between the lines `<!-- begin NAME -->` and `<!-- end NAME -->`.
func Replace(document string, sections map[string]string) (string, error) {
	for name, text := range sections {
		begin, end := "<!-- begin "+name+" -->\n", "<!-- end "+name+" -->\n"
		before, rest, hasBegin := strings.Cut(document, begin)
		_, after, hasEnd := strings.Cut(rest, end)
		if !hasBegin || !hasEnd {
			return "", fmt.Errorf("section %s is missing; add the lines %s and %s where it belongs", name, strings.TrimSpace(begin), strings.TrimSpace(end))
		}
		document = before + begin + "\n" + strings.TrimSpace(text) + "\n\n" + end + after
	}
	for line := range strings.Lines(document) {
		name, ok := strings.CutPrefix(strings.TrimSuffix(strings.TrimSpace(line), " -->"), "<!-- begin ")
		if _, known := sections[name]; ok && !known {
			return "", fmt.Errorf("section %s is not generated; remove its lines", name)
		}
	}
	return document, nil
}

// Table is a Markdown table.
type Table struct {
	header string
	rows   []string
}

// NewTable returns a table without rows.
func NewTable(columns ...string) *Table {
	return &Table{header: row(columns) + row(strings.Split(strings.Repeat("--- ", len(columns)-1)+"---", " "))}
}

// Add appends a row.
func (t *Table) Add(cells ...string) { t.rows = append(t.rows, row(cells)) }

func (t *Table) String() string { return t.header + strings.Join(t.rows, "") }

func row(cells []string) string {
	for i, cell := range cells {
		cells[i] = strings.ReplaceAll(strings.TrimSuffix(cell, "."), "|", `\|`)
	}
	return "| " + strings.Join(cells, " | ") + " |\n"
}

// Code formats text as code.
func Code(text string) string {
	if text == "" {
		return ""
	}
	return "`" + text + "`"
}
