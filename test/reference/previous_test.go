package reference

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The reasons of Events and conditions of a previous version exist, since alert rules match them.
func TestPreviousReasonsExist(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("testdata", "reasons.txt"))
	if err != nil {
		t.Fatal(err)
	}
	events, conditions := parse(t, "pkg/sdn/eventreason"), parse(t, "pkg/sdn/config")
	table := must(t)
	tables := map[string]string{
		"Event":              table(EventTable(events)),
		"NetworkUnavailable": table(ConditionTable(conditions, "NetworkUnavailable")),
		"Accepted":           table(ConditionTable(conditions, "ConditionAccepted")),
	}
	reasons := 0
	for line := range strings.Lines(string(text)) {
		kind, reason, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || kind == "#" {
			continue
		}
		reasons++
		if !strings.Contains(tables[kind], Code(reason)) {
			t.Errorf("%s: got no reason %s, want one; alert rules match it", kind, reason)
		}
	}
	if reasons == 0 {
		t.Error("got no reasons, want those of the previous version")
	}
}

// The table of messages that changed has current ones, with their codes, and none that is still current as a previous one.
func TestChangedCNIErrors(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs", "reference.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(text), "<!-- begin cni-errors -->")
	current, changed, ok := strings.Cut(section, "<!-- end cni-errors -->")
	if !ok {
		t.Fatal("docs/reference.md: got no section cni-errors, want one")
	}
	rows := 0
	for line := range strings.Lines(changed) {
		cells := strings.Split(strings.TrimSpace(line), " | ")
		code, isRow := strings.CutPrefix(cells[0], "| ")
		if !isRow || len(cells) != 3 || code == "code" || code == "---" {
			continue
		}
		rows++
		previous, now := cells[1], strings.TrimSuffix(cells[2], " |")
		if !slices.ContainsFunc(strings.Split(current, "\n"), func(row string) bool {
			return strings.HasPrefix(row, "| "+code+" `") && strings.Contains(row, "` | "+now+" | ")
		}) {
			t.Errorf("docs/reference.md: got message %q of code %s as the current one, want one of the table of CNI errors", now, code)
		}
		if strings.Contains(current, "` | "+previous+" | ") {
			t.Errorf("docs/reference.md: got message %q as a previous one, but it is in the table of CNI errors", previous)
		}
	}
	if rows == 0 {
		t.Error("docs/reference.md: got no messages that changed, want some")
	}
}
