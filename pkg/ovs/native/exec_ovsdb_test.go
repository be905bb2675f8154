package native

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// table is the output of one `list` or `find` of `ovs-vsctl --format=json`: rows of OVSDB values in the notation of
// RFC 7047 section 5.1, with a heading for each column.
type table struct {
	Headings []string            `json:"headings"`
	Data     [][]json.RawMessage `json:"data"`
}

// row is one row of a table, by column.
type row map[string]json.RawMessage

// decodeTables decodes the output of ovs-vsctl: one table for each command, in order.
func decodeTables(out []byte, n int) ([][]row, error) {
	dec := json.NewDecoder(bytes.NewReader(out))
	var tables [][]row
	for {
		var t table
		err := dec.Decode(&t)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("decode the output of ovs-vsctl: %w", err)
		}
		rows := make([]row, 0, len(t.Data))
		for _, values := range t.Data {
			if len(values) != len(t.Headings) {
				return nil, fmt.Errorf("decode the output of ovs-vsctl: a row of %d values under %d headings", len(values), len(t.Headings))
			}
			r := make(row, len(values))
			for i, v := range values {
				r[t.Headings[i]] = v
			}
			rows = append(rows, r)
		}
		tables = append(tables, rows)
	}
	if len(tables) != n {
		return nil, fmt.Errorf("decode the output of ovs-vsctl: got %d tables, want %d", len(tables), n)
	}
	return tables, nil
}

// atoms returns the column's values: one for a scalar, any number for a set.
func (r row) atoms(column string) ([]json.RawMessage, error) {
	v, ok := r[column]
	if !ok {
		return nil, fmt.Errorf("OVSDB column %s is missing", column)
	}
	kind, members, err := r.tagged(v)
	if err != nil {
		return nil, fmt.Errorf("OVSDB column %s: %w", column, err)
	}
	switch kind {
	case "set":
		var atoms []json.RawMessage
		if err := json.Unmarshal(members, &atoms); err != nil {
			return nil, fmt.Errorf("OVSDB column %s: set: %w", column, err)
		}
		return atoms, nil
	case "map":
		return nil, fmt.Errorf("OVSDB column %s is a map", column)
	}
	return []json.RawMessage{v}, nil
}

// tagged splits ["set", …], ["map", …] and ["uuid", …]; a plain value has no kind.
func (row) tagged(v json.RawMessage) (kind string, content json.RawMessage, err error) {
	if !bytes.HasPrefix(bytes.TrimSpace(v), []byte("[")) {
		return "", v, nil
	}
	var pair []json.RawMessage
	if err := json.Unmarshal(v, &pair); err != nil {
		return "", nil, err
	}
	if len(pair) != 2 {
		return "", nil, fmt.Errorf("%s is not a value in OVSDB notation", v)
	}
	if err := json.Unmarshal(pair[0], &kind); err != nil {
		return "", nil, err
	}
	return kind, pair[1], nil
}

// atom decodes a string, a number or a uuid to its text.
func (r row) atom(v json.RawMessage) (string, error) {
	kind, content, err := r.tagged(v)
	if err != nil {
		return "", err
	}
	if kind != "" && kind != "uuid" {
		return "", fmt.Errorf("%s is not an atom in OVSDB notation", v)
	}
	if kind == "" && !bytes.HasPrefix(bytes.TrimSpace(content), []byte(`"`)) {
		var n json.Number
		if err := json.Unmarshal(content, &n); err != nil {
			return "", err
		}
		if n == "" {
			return "", fmt.Errorf("%s is not an atom in OVSDB notation", v)
		}
		return n.String(), nil
	}
	var s string
	if err := json.Unmarshal(content, &s); err != nil {
		return "", err
	}
	return s, nil
}

// texts returns the values of the column as text.
func (r row) texts(column string) ([]string, error) {
	atoms, err := r.atoms(column)
	if err != nil {
		return nil, err
	}
	out := make([]string, len(atoms))
	for i, a := range atoms {
		if out[i], err = r.atom(a); err != nil {
			return nil, fmt.Errorf("OVSDB column %s: %w", column, err)
		}
	}
	return out, nil
}

// text returns the value of a column with at most one value, or "" if it is empty.
func (r row) text(column string) (string, error) {
	values, err := r.texts(column)
	if err != nil {
		return "", err
	}
	switch len(values) {
	case 0:
		return "", nil
	case 1:
		return values[0], nil
	}
	return "", fmt.Errorf("OVSDB column %s has %d values, want at most one", column, len(values))
}

// number returns the number in a column with at most one value, or 0 if it is empty.
func (r row) number(column string) (int, error) {
	s, err := r.text(column)
	if err != nil || s == "" {
		return 0, err
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		return 0, fmt.Errorf("OVSDB column %s: %w", column, err)
	}
	return n, nil
}

// pairs returns the column's map, or nil if it is empty.
func (r row) pairs(column string) (map[string]string, error) {
	v, ok := r[column]
	if !ok {
		return nil, fmt.Errorf("OVSDB column %s is missing", column)
	}
	kind, content, err := r.tagged(v)
	if err == nil && kind != "map" {
		err = fmt.Errorf("%s is not a map in OVSDB notation", v)
	}
	var pairs [][]json.RawMessage
	if err == nil {
		err = json.Unmarshal(content, &pairs)
	}
	if err != nil {
		return nil, fmt.Errorf("OVSDB column %s: %w", column, err)
	}
	if len(pairs) == 0 {
		return nil, nil
	}
	m := make(map[string]string, len(pairs))
	for _, p := range pairs {
		if len(p) != 2 {
			return nil, fmt.Errorf("OVSDB column %s: a map's pair has %d members", column, len(p))
		}
		key, err := r.atom(p[0])
		if err != nil {
			return nil, fmt.Errorf("OVSDB column %s: %w", column, err)
		}
		if m[key], err = r.atom(p[1]); err != nil {
			return nil, fmt.Errorf("OVSDB column %s: %w", column, err)
		}
	}
	return m, nil
}

// vsctlString quotes a value as a JSON string, in which ovs-vsctl interprets no character as syntax.
func vsctlString(s string) (string, error) {
	if !utf8.ValidString(s) || strings.ContainsRune(s, 0) {
		return "", fmt.Errorf("%q: OVSDB accepts only UTF-8 without NUL", s)
	}
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(s); err != nil {
		return "", err
	}
	return strings.TrimSuffix(b.String(), "\n"), nil
}
