// Package flowmod parses flow_mods as ovs-ofctl prints them.
package flowmod

import (
	"strconv"
	"strings"
)

// Parse reads the key from the text of a flow_mod: a command, the table unless it is 0, the priority unless it is
// 32768 with the match, then name:value pairs and the actions.
func Parse(mod string) (table, priority int, match string, ok bool) {
	const defaultPriority = 32768 // OFP_DEFAULT_PRIORITY
	priority = defaultPriority
	words := strings.Fields(mod)
	if len(words) == 0 {
		return 0, 0, "", false
	}
	for _, w := range words[1:] {
		if t, ok := strings.CutPrefix(w, "table:"); ok {
			n, err := strconv.Atoi(t)
			if err != nil {
				return 0, 0, "", false
			}
			table = n
			continue
		}
		if strings.HasPrefix(w, "actions=") || isFlowModPair(w) {
			break
		}
		rest := w
		if p, ok := strings.CutPrefix(w, "priority="); ok {
			number, after, _ := strings.Cut(p, ",")
			n, err := strconv.Atoi(number)
			if err != nil {
				return 0, 0, "", false
			}
			priority, rest = n, after
		}
		match = rest
		break
	}
	return table, priority, match, true
}

// isFlowModPair reports whether the word is one of the name:value pairs behind the match, or the flags.
func isFlowModPair(w string) bool {
	for _, name := range []string{"cookie", "idle", "hard", "pri", "importance", "buf", "out_port", "out_group"} {
		if strings.HasPrefix(w, name+":") {
			return true
		}
	}
	return false
}
