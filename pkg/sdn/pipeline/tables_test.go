package pipeline

import (
	"bufio"
	"fmt"
	"os"
	"testing"
)

// A table never gets the number of another one (docs/decisions/0023-table-numbers.md). testdata/tables has all that ever were: a new table is added there, and a
// removed one stays.
func TestTables_numbersArePermanent(t *testing.T) {
	f, err := os.Open("testdata/tables")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	names := map[int]string{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var number int
		var name string
		if _, err := fmt.Sscan(lines.Text(), &number, &name); err != nil {
			t.Fatalf("line %q: %v", lines.Text(), err)
		}
		if other, exists := names[number]; exists {
			t.Errorf("number %d: two tables, %s and %s", number, other, name)
		}
		names[number] = name
	}
	for _, table := range Tables() {
		if got := names[table.Number]; got != table.Name {
			t.Errorf("table %d is %s, and %q in testdata/tables: give a new table a number that no table has had, and add it there", table.Number, table.Name, got)
		}
	}
}
