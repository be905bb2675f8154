package main

import (
	"fmt"
	"os"
	"strings"
)

// The lines of a page around the table.
const (
	tableStart = "<!-- durations -->"
	tableEnd   = "<!-- /durations -->"
)

// durations is a table of the steps in Markdown.
func durations(steps []step) string {
	var table strings.Builder
	table.WriteString("| step | seconds | longest |\n|---|---|---|\n")
	sum := 0
	for _, s := range steps {
		var longest []string
		for _, p := range s.largest(5) {
			if p.seconds >= 1 {
				longest = append(longest, fmt.Sprintf("`%s` %.0f", p.name, p.seconds))
			}
		}
		fmt.Fprintf(&table, "| %s | %d | %s |\n", s.name, s.seconds, strings.Join(longest, ", "))
		sum += s.seconds
	}
	fmt.Fprintf(&table, "| all | %d | |\n", sum)
	return table.String()
}

// replaceTable writes the table into a page.
func replaceTable(page, table string) error {
	content, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(content), tableStart+"\n")
	_, after, ok2 := strings.Cut(rest, tableEnd+"\n")
	if !ok || !ok2 {
		return fmt.Errorf("%s lacks the lines %s and %s", page, tableStart, tableEnd)
	}
	return os.WriteFile(page, []byte(before+tableStart+"\n"+table+tableEnd+"\n"+after), 0o644)
}
