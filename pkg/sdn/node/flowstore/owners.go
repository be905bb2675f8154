package flowstore

import (
	"slices"

	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// owners are the contributions to a key. Most keys have one owner, and a list or a map for each would be most of the store's memory; a few have thousands, and a
// linear search would be most of its time.
type owners struct {
	one  [1]owned   // the only owner; zero: there are none, or several
	many *ownerList // nil: there is at most one
}

// ownerList is a list of owners.
type ownerList struct {
	list  []owned
	index map[pipeline.Owner]int // in the list; nil if the list is short
}

type owned struct {
	owner        pipeline.Owner
	contribution contribution
}

// maxUnindexed is the length of the longest list without an index. A search of a short list is faster than a lookup.
const maxUnindexed = 8

// all returns the owners, in no order. The slice is valid until the next change.
func (o *owners) all() []owned {
	switch {
	case o.many != nil:
		return o.many.list
	case o.one[0] == (owned{}):
		return nil
	}
	return o.one[:]
}

func (o *owners) find(owner pipeline.Owner) int {
	if o.many == nil || o.many.index == nil {
		return slices.IndexFunc(o.all(), func(x owned) bool { return x.owner == owner })
	}
	if i, ok := o.many.index[owner]; ok {
		return i
	}
	return -1
}

// get returns the owner's contribution.
func (o *owners) get(owner pipeline.Owner) (contribution, bool) {
	if i := o.find(owner); i >= 0 {
		return o.all()[i].contribution, true
	}
	return contribution{}, false
}

func (o *owners) set(owner pipeline.Owner, c contribution) {
	if i := o.find(owner); i >= 0 {
		o.all()[i].contribution = c
		return
	}
	switch {
	case o.many != nil:
		o.many.add(owned{owner, c})
	case o.one[0] == (owned{}):
		o.one[0] = owned{owner, c}
	default:
		o.many = &ownerList{list: []owned{o.one[0], {owner, c}}}
		o.one[0] = owned{}
	}
}

func (l *ownerList) add(x owned) {
	l.list = append(l.list, x)
	switch {
	case l.index != nil:
		l.index[x.owner] = len(l.list) - 1
	case len(l.list) > maxUnindexed:
		l.index = make(map[pipeline.Owner]int, len(l.list))
		for i, x := range l.list {
			l.index[x.owner] = i
		}
	}
}

func (o *owners) remove(owner pipeline.Owner) {
	i := o.find(owner)
	switch {
	case i < 0:
		return
	case o.many == nil:
		o.one[0] = owned{}
		return
	}
	if o.many.remove(i); len(o.many.list) == 0 {
		o.many = nil
	}
}

// remove removes the owner with the index.
func (l *ownerList) remove(i int) {
	if l.index != nil {
		delete(l.index, l.list[i].owner)
	}
	last := len(l.list) - 1
	l.list[i] = l.list[last]
	l.list[last] = owned{}
	l.list = l.list[:last]
	if l.index != nil && i < last {
		l.index[l.list[i].owner] = i
	}
}

// sorted returns the owners in order.
func (o *owners) sorted() []pipeline.Owner {
	all := o.all()
	names := make([]pipeline.Owner, len(all))
	for i, x := range all {
		names[i] = x.owner
	}
	slices.SortFunc(names, compareOwners)
	return names
}
