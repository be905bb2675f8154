package flowstore

import (
	"slices"
	"strings"
)

// union is the set of the conjunction actions that several owners contribute to one flow. The cost of a change does not depend on the number of owners,
// except for the list, which has to be sent completely anyway.
type union struct {
	count   map[string]int // number of owners by the action's text
	sorted  []string
	printed string // sorted as one text; "": not up to date
}

func (u *union) add(texts []string) {
	for _, text := range texts {
		if u.count == nil {
			u.count = map[string]int{}
		}
		if u.count[text]++; u.count[text] == 1 {
			i, _ := slices.BinarySearch(u.sorted, text)
			u.sorted = slices.Insert(u.sorted, i, text)
			u.printed = ""
		}
	}
}

func (u *union) remove(texts []string) {
	for _, text := range texts {
		if u.count[text]--; u.count[text] == 0 {
			delete(u.count, text)
			i, _ := slices.BinarySearch(u.sorted, text)
			u.sorted = slices.Delete(u.sorted, i, i+1)
			u.printed = ""
		}
	}
}

// text returns the text of all actions, in order.
func (u *union) text() string {
	if u.printed == "" {
		u.printed = strings.Join(u.sorted, ",")
	}
	return u.printed
}
