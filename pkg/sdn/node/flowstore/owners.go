package flowstore

import (
	"slices"

	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// owners are the contributions to a key. Most keys have one owner, and a map for each would be most of the store's memory; a few have thousands, and a
// linear search would be most of its time.
type owners struct {
	list  []owned
	index map[pipeline.Owner]int // in the list; nil if the list is short
	first [1]owned               // memory of a list of one, without another allocation
}

type owned struct {
	owner        pipeline.Owner
	contribution contribution
}

// maxUnindexed is the length of the longest list without an index. A search of a short list is faster than a lookup.
const maxUnindexed = 8

func (o *owners) find(owner pipeline.Owner) int {
	if o.index == nil {
		return slices.IndexFunc(o.list, func(x owned) bool { return x.owner == owner })
	}
	if i, ok := o.index[owner]; ok {
		return i
	}
	return -1
}

// get returns the owner's contribution.
func (o *owners) get(owner pipeline.Owner) (contribution, bool) {
	if i := o.find(owner); i >= 0 {
		return o.list[i].contribution, true
	}
	return contribution{}, false
}

func (o *owners) set(owner pipeline.Owner, c contribution) {
	if i := o.find(owner); i >= 0 {
		o.list[i].contribution = c
		return
	}
	if o.list == nil {
		o.list = o.first[:0]
	}
	if o.list = append(o.list, owned{owner, c}); len(o.list) > 1 {
		o.first[0] = owned{} // append has copied it
	}
	switch {
	case o.index != nil:
		o.index[owner] = len(o.list) - 1
	case len(o.list) > maxUnindexed:
		o.index = make(map[pipeline.Owner]int, len(o.list))
		for i, x := range o.list {
			o.index[x.owner] = i
		}
	}
}

func (o *owners) remove(owner pipeline.Owner) {
	i := o.find(owner)
	if i < 0 {
		return
	}
	last := len(o.list) - 1
	o.list[i] = o.list[last]
	o.list[last] = owned{}
	o.list = o.list[:last]
	if o.index != nil {
		delete(o.index, owner)
		if i < last {
			o.index[o.list[i].owner] = i
		}
	}
}

// sorted returns the owners in order.
func (o *owners) sorted() []pipeline.Owner {
	names := make([]pipeline.Owner, len(o.list))
	for i, x := range o.list {
		names[i] = x.owner
	}
	slices.SortFunc(names, compareOwners)
	return names
}
