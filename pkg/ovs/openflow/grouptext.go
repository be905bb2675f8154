package openflow

import (
	"fmt"
	"strconv"
	"strings"
)

// defaultWeight is the weight of a select group's bucket whose text gives none.
const defaultWeight = 1

// String returns the group as `ovs-ofctl -O OpenFlow15 dump-groups` prints it.
func (g *Group) String() string {
	b := strconv.AppendUint([]byte("group_id="), uint64(g.ID), 10)
	b = append(append(b, ",type="...), g.Type.String()...)
	if s := g.Selection; s != nil {
		b = append(append(b, ",selection_method="...), s.Method...)
		if s.Param != 0 {
			b = strconv.AppendUint(append(b, ",selection_method_param="...), s.Param, 10)
		}
		b = s.appendFields(b)
	}
	for i := range g.Buckets {
		b = g.Buckets[i].appendText(append(b, ",bucket="...), g.Type)
	}
	return string(b)
}

func (s *Selection) appendFields(b []byte) []byte {
	switch len(s.Fields) {
	case 0:
		return b
	case 1:
		b = append(b, ",fields="...)
	default:
		b = append(b, ",fields("...)
	}
	for i, f := range s.Fields {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, f.ID.String()...)
		if f.Value != f.ID.mask() {
			b = appendFieldValue(append(b, '='), Exact(f.ID, f.Value))
		}
	}
	if len(s.Fields) > 1 {
		b = append(b, ')')
	}
	return b
}

func (k *Bucket) appendText(b []byte, t GroupType) []byte {
	b = strconv.AppendUint(append(b, "bucket_id:"...), uint64(k.ID), 10)
	if t == GroupSelect && k.Weight != defaultWeight || t != GroupSelect && k.Weight != 0 {
		b = strconv.AppendUint(append(b, ",weight:"...), uint64(k.Weight), 10)
	}
	if k.WatchPort != 0 {
		b = appendPort(append(b, ",watch_port:"...), k.WatchPort)
	}
	if k.WatchGroup != 0 {
		b = strconv.AppendUint(append(b, ",watch_group:"...), uint64(k.WatchGroup), 10)
	}
	return append(append(b, ",actions="...), FormatActions(k.Actions)...)
}

// ParseGroup reads a group as ovs-ofctl takes and prints it. Buckets without an id are numbered from 0, those of a select group without
// a weight weigh 1.
func ParseGroup(text string) (*Group, error) {
	g, err := parseGroup(text)
	if err != nil {
		return nil, fmt.Errorf("group %q: %w", excerpt(text), err)
	}
	return g, nil
}

func parseGroup(text string) (*Group, error) {
	g := &Group{ID: anyGroup}
	head, buckets, hasBuckets := strings.Cut(text, "bucket=")
	typed := false
	err := eachWord(head, func(w word) error {
		typed = typed || w.key == "type"
		return g.property(w)
	})
	switch {
	case err != nil:
		return nil, err
	case g.ID == anyGroup:
		return nil, fmt.Errorf("group_id= is missing")
	case !typed:
		return nil, fmt.Errorf("type= is missing")
	case g.Selection != nil && g.Selection.Method == "":
		return nil, fmt.Errorf("selection_method= is missing")
	case !hasBuckets:
		return g, nil
	}
	for text := range strings.SplitSeq(buckets, "bucket=") {
		k := Bucket{ID: uint32(len(g.Buckets))}
		if g.Type == GroupSelect {
			k.Weight = defaultWeight
		}
		if err := k.parse(text); err != nil {
			return nil, fmt.Errorf("bucket %d: %w", len(g.Buckets), err)
		}
		g.Buckets = append(g.Buckets, k)
	}
	return g, nil
}

func (g *Group) property(w word) error {
	selection := func() *Selection {
		if g.Selection == nil {
			g.Selection = &Selection{}
		}
		return g.Selection
	}
	var err error
	switch w.key {
	case "group_id":
		n, err := w.uint(32)
		if err == nil && n >= uint64(AllGroups) {
			err = fmt.Errorf("group_id=%d is reserved", n)
		}
		g.ID = uint32(n)
		return err
	case "type":
		for i, name := range groupTypeNames() {
			if w.value == name || i == int(GroupFailover) && w.value == "fast_failover" {
				g.Type = GroupType(i)
				return nil
			}
		}
		return fmt.Errorf("type=%s is not one of %s", w.value, strings.Join(namesOf(groupTypeNames()), ", "))
	case "selection_method":
		if selection().Method = w.value; strings.ContainsAny(w.value, separators+"=:(") || len(w.value) >= selectionMethodLen {
			err = fmt.Errorf("%q is not a selection method", excerpt(w.value))
		}
		return err
	case "selection_method_param":
		selection().Param, err = w.uint(64)
		return err
	case "fields":
		return eachWord(w.value, func(w word) error {
			f, err := parseSelectionField(w)
			selection().Fields = append(selection().Fields, f)
			return err
		})
	}
	return fmt.Errorf("%q is not a property of a group", w.key)
}

func namesOf(a [4]string) []string { return a[:] }

func parseSelectionField(w word) (Field, error) {
	id, ok := fieldNames[w.key]
	switch {
	case !ok:
		return Field{}, fmt.Errorf("%q is not a field that this package knows", w.key)
	case w.form == 0:
		return Exact(id, id.mask()), nil
	}
	return parseFieldValue(id, w.value)
}

// parse reads a bucket. Words that are no properties are actions, as for ovs-ofctl.
func (k *Bucket) parse(text string) error {
	var actions []string
	hasActions := false
	for {
		w, rest, err := nextWord(text)
		if err != nil {
			return err
		}
		number := func(to *uint32, width int) error {
			n, err := w.uint(width)
			*to = uint32(n)
			return err
		}
		switch w.key {
		case "":
			if !hasActions {
				return fmt.Errorf("actions= is missing")
			}
			k.Actions, err = ParseActions(strings.Join(actions, ","))
			return err
		case "bucket_id":
			err = number(&k.ID, 32)
		case "weight":
			var n uint32
			err = number(&n, 16)
			k.Weight = uint16(n)
		case "watch_port":
			k.WatchPort, err = ParsePort(w.value)
		case "watch_group":
			err = number(&k.WatchGroup, 32)
		case "actions", "action":
			hasActions = true
			actions = append(actions, w.value)
		default:
			hasActions = true
			actions = append(actions, strings.Trim(strings.TrimSuffix(text, rest), separators))
		}
		if err != nil {
			return err
		}
		text = rest
	}
}

// String returns the change as a line of a file that `ovs-ofctl -O OpenFlow15 --bundle add-groups` takes.
func (m *GroupMod) String() string {
	s := m.Command.String() + " "
	switch m.Command {
	case GroupDelete:
		if m.Group.ID == AllGroups {
			return s + "group_id=all"
		}
		return s + "group_id=" + strconv.FormatUint(uint64(m.Group.ID), 10)
	case GroupInsertBucket, GroupRemoveBucket:
		s += "group_id=" + strconv.FormatUint(uint64(m.Group.ID), 10) + ",command_bucket_id="
		switch m.Bucket {
		case FirstBucket:
			s += "first"
		case LastBucket:
			s += "last"
		case AllBuckets:
			s += "all"
		default:
			s += strconv.FormatUint(uint64(m.Bucket), 10)
		}
		for i := range m.Group.Buckets {
			s += string(m.Group.Buckets[i].appendText([]byte(",bucket="), m.Group.Type))
		}
		return s
	}
	return s + m.Group.String()
}
