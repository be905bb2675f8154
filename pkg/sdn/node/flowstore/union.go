package flowstore

import (
	"slices"
	"strings"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// union is the set of the conjunction actions that several owners contribute to one flow. The cost of a change does not depend on the number of owners,
// except for the list, which has to be sent completely anyway.
type union struct {
	count   map[string]int // number of owners by the action's text
	byText  map[string]ovs.Action
	sorted  []string
	printed string // sorted as one text; "": not up to date
}

func (u *union) add(actions map[string]ovs.Action) {
	for text, a := range actions {
		if u.count == nil {
			u.count, u.byText = map[string]int{}, map[string]ovs.Action{}
		}
		if u.count[text]++; u.count[text] == 1 {
			u.byText[text] = a
			i, _ := slices.BinarySearch(u.sorted, text)
			u.sorted = slices.Insert(u.sorted, i, text)
			u.printed = ""
		}
	}
}

func (u *union) remove(actions map[string]ovs.Action) {
	for text := range actions {
		if u.count[text]--; u.count[text] == 0 {
			delete(u.count, text)
			delete(u.byText, text)
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

func (u *union) actions() []ovs.Action {
	actions := make([]ovs.Action, len(u.sorted))
	for i, text := range u.sorted {
		actions[i] = u.byText[text]
	}
	return actions
}
