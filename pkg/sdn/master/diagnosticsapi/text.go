package diagnosticsapi

import (
	"strconv"
	"strings"
	"unicode"
)

// Limits of strings that agents send, in bytes.
const (
	maxMessage = 512
	maxName    = 64 // of versions, modes and the like
	maxText    = 16 << 10
)

// printable returns at most limit bytes of the string. One with characters that a terminal could interpret is quoted.
func printable(s string, limit int) string {
	if len(s) > limit {
		s = strings.ToValidUTF8(s[:limit], "") + "…"
	}
	if strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }) {
		return strconv.Quote(s)
	}
	return strings.Clone(s) // does not retain the rest
}
