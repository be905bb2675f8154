package flowstore

import (
	"hash/fnv"
	"sync"
)

// groupNumbers allocates the numbers of groups. The writer changes it, and Desired reads it.
type groupNumbers struct {
	mu   sync.Mutex
	keys map[uint32]key
	of   map[string]uint32 // by the name in the key
}

func newGroupNumbers() *groupNumbers {
	return &groupNumbers{keys: map[uint32]key{}, of: map[string]uint32{}}
}

// maxGroup is the largest number that a group can have, less than OFPG_MAX.
const maxGroup = 0xffff0000

// allocate allocates a group number: the hash of the name, or the next free one. After a restart of the agent the numbers are the same, and nothing has
// to be written, unless two hashes collide and their keys are added in another order; then one bundle rewrites both groups, and the flows to them.
func (g *groupNumbers) allocate(k key) uint32 {
	h := fnv.New32a()
	h.Write([]byte(k.text)) // never fails (hash.Hash)
	g.mu.Lock()
	defer g.mu.Unlock()
	for n := h.Sum32()%maxGroup + 1; ; n = n%maxGroup + 1 {
		if _, taken := g.keys[n]; !taken {
			g.keys[n], g.of[k.text] = k, n
			return n
		}
	}
}

func (g *groupNumbers) release(n uint32) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.of, g.keys[n].text)
	delete(g.keys, n)
}

// key returns the key of the group with the number, the zero key if there is none.
func (g *groupNumbers) key(n uint32) key {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.keys[n]
}

// number returns the number of a group, 0 if it has none.
func (g *groupNumbers) number(k key) uint32 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.of[k.text]
}
