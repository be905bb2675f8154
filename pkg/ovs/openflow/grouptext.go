package openflow

import (
	"fmt"
	"strconv"
	"strings"
)

// defaultWeight is the weight of a bucket of a select group if the text does not specify one.
const defaultWeight = 1

// String returns the group as `ovs-ofctl -O OpenFlow14 dump-groups` prints it.
func (g *Group) String() string {
	b := strconv.AppendUint([]byte("group_id="), uint64(g.ID), 10)
	b = append(append(b, ",type="...), g.Type.String()...)
	for i := range g.Buckets {
		b = g.Buckets[i].appendText(append(b, ",bucket="...), g.Type)
	}
	return string(b)
}

func (k *Bucket) appendText(b []byte, t GroupType) []byte {
	if t == GroupSelect && k.Weight != defaultWeight || t != GroupSelect && k.Weight != 0 {
		b = append(strconv.AppendUint(append(b, "weight:"...), uint64(k.Weight), 10), ',')
	}
	if k.WatchPort != 0 {
		b = append(appendPort(append(b, "watch_port:"...), k.WatchPort), ',')
	}
	if k.WatchGroup != 0 {
		b = append(strconv.AppendUint(append(b, "watch_group:"...), uint64(k.WatchGroup), 10), ',')
	}
	return append(append(b, "actions="...), FormatActions(k.Actions)...)
}

// ParseGroup parses a group in the syntax that ovs-ofctl accepts or prints. The default weight of a bucket of a select group is 1.
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
	case !hasBuckets:
		return g, nil
	}
	for text := range strings.SplitSeq(buckets, "bucket=") {
		var k Bucket
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
	}
	return fmt.Errorf("%q is not a property of a group", w.key)
}

func namesOf(a [4]string) []string { return a[:] }

// parse parses a bucket. As in ovs-ofctl, words that are not properties are actions.
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

// String returns the change in the syntax of a line of a file for `ovs-ofctl -O OpenFlow14 --bundle add-groups`.
func (m *GroupMod) String() string {
	if m.Command != GroupDelete {
		return m.Command.String() + " " + m.Group.String()
	}
	if m.Group.ID == AllGroups {
		return "delete group_id=all"
	}
	return "delete group_id=" + strconv.FormatUint(uint64(m.Group.ID), 10)
}
