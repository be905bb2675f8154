package openflow

import (
	"encoding/hex"
	"fmt"
	"strings"
)

// separators separate the words of a match or a list of actions.
const separators = ", \t\r\n"

func isSeparator(c byte) bool {
	switch c {
	case ',', ' ', '\t', '\r', '\n':
		return true
	}
	return false
}

func trimSeparators(s string) string {
	for s != "" && isSeparator(s[0]) {
		s = s[1:]
	}
	return s
}

// word is one element of a match or a list of actions: key, key=value, key:value or key(value)tail; a tail extends to the next separator.
type word struct {
	key   string
	value string
	tail  string // in key(value)tail
	form  byte   // '=', ':', '(' or 0 for a key alone
	pass  pass   // of matchParser
}

// nextWord cuts the first word off s. At the end it returns a word without a key.
func nextWord(s string) (w word, rest string, err error) {
	s = trimSeparators(s)
	if s == "" {
		return word{}, "", nil
	}
	end := 0
	for end < len(s) && s[end] != ':' && s[end] != '=' && s[end] != '(' && !isSeparator(s[end]) {
		end++
	}
	switch end {
	case len(s):
		return word{key: s}, "", nil
	case 0:
		return word{}, "", fmt.Errorf("%q: a name is missing before %q", excerpt(s), s[0])
	}
	w = word{key: s[:end], form: s[end]}
	switch w.form {
	case '(':
		closing, err := matching(s[end:])
		if err != nil {
			return w, "", err
		}
		w.value = s[end+1 : end+closing]
		rest = s[end+closing+1:]
		if w.tail, rest, err = untilSeparator(rest); err != nil {
			return w, "", err
		}
		return w, rest, nil
	case ':', '=':
		if w.value, rest, err = untilSeparator(s[end+1:]); err != nil {
			return w, "", err
		}
		return w, rest, nil
	}
	w.form = 0
	return w, s[end:], nil
}

// matching returns the offset of the parenthesis that closes the one at the beginning of s.
func matching(s string) (int, error) {
	depth := 0
	for i := range len(s) {
		switch s[i] {
		case '(':
			depth++
		case ')':
			if depth--; depth == 0 {
				return i, nil
			}
		}
	}
	return 0, fmt.Errorf("%q: a closing parenthesis is missing", excerpt(s))
}

// untilSeparator splits s at the first separator outside of parentheses.
func untilSeparator(s string) (head, rest string, err error) {
	depth := 0
	for i := range len(s) {
		switch c := s[i]; c {
		case '(':
			depth++
		case ')':
			if depth--; depth < 0 {
				return "", "", fmt.Errorf("%q: an opening parenthesis is missing", excerpt(s))
			}
		default:
			if depth == 0 && isSeparator(c) {
				return s[:i], s[i:], nil
			}
		}
	}
	if depth != 0 {
		return "", "", fmt.Errorf("%q: a closing parenthesis is missing", excerpt(s))
	}
	return s, "", nil
}

// excerpt shortens input for error messages.
func excerpt(s string) string {
	const most = 60
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}

// plain returns an error if the word has a value or a tail.
func (w word) plain() error {
	if w.value != "" || w.tail != "" {
		return fmt.Errorf("%s takes no argument", w.key)
	}
	return nil
}

// uint parses the word's value as a number.
func (w word) uint(bits int) (uint64, error) {
	n, err := parseUint(w.value, bits)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", w.key, err)
	}
	return n, nil
}

// unknownWord is the keyword of unsupported actions, instructions and fields.
const unknownWord = "unknown"

// appendUnknown appends the bytes of an unsupported element as unknown(0x…).
func appendUnknown(b, raw []byte) []byte {
	b = append(b, unknownWord+"(0x"...)
	b = hex.AppendEncode(b, raw)
	return append(b, ')')
}

// unknownBytes is the inverse of appendUnknown.
func (w word) unknownBytes() ([]byte, error) {
	digits, ok := strings.CutPrefix(w.value, "0x")
	raw, err := hex.DecodeString(digits)
	if !ok || err != nil || len(raw) == 0 || w.tail != "" {
		return nil, fmt.Errorf("unknown(%s): write the bytes as 0x…", excerpt(w.value))
	}
	return raw, nil
}
