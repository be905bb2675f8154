package ipam

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
)

// freedName is the file that remembers the order across restarts. No address has that name, so host-local passes it over.
const freedName = "freed"

// freed is the queue of addresses that came free. Peers, conntrack and ARP caches may still know the last holder of an address, so
// the one that has been free for longest goes first, and none goes while there is one that nobody has had.
//
// The file is a log of addresses, a line each time one came free: the last line of an address counts. It is not worth a
// failure: without it, or with a broken one, the order is host-local's round.
type freed struct {
	path   string
	turn   map[netip.Addr]uint64 // rises with time
	next   uint64
	queues map[bool][]queued // by Is4; those whose turn has changed are passed over
	lines  int               // in the file
}

type queued struct {
	addr netip.Addr
	turn uint64
}

// slack is how many lines too many the file may have.
const slack = 1000

// loadFreed reads the file, and keeps the addresses that are free.
func loadFreed(path string, isFree func(netip.Addr) bool) *freed {
	q := &freed{path: path, turn: map[netip.Addr]uint64{}, queues: map[bool][]queued{}}
	file, err := os.Open(path)
	if err != nil {
		return q
	}
	defer file.Close()
	q.read(file, isFree)
	return q
}

func (q *freed) read(r io.Reader, isFree func(netip.Addr) bool) {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return // a line without an end was not written whole
		}
		q.lines++
		addr, err := netip.ParseAddr(strings.TrimSuffix(line, "\n"))
		if err == nil && isFree(addr) {
			q.append(addr)
		}
	}
}

func (q *freed) append(addr netip.Addr) {
	q.next++
	q.turn[addr] = q.next
	q.queues[addr.Is4()] = append(q.queues[addr.Is4()], queued{addr, q.next})
}

// push puts the address at the end of the queue. An error says that this will be forgotten.
func (q *freed) push(addr netip.Addr) error {
	q.append(addr)
	if q.lines > 2*len(q.turn)+slack {
		return q.rewrite()
	}
	file, err := os.OpenFile(q.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	q.lines++
	if _, err := fmt.Fprintln(file, addr); err != nil {
		file.Close()
		return err
	}
	return file.Close()
}

// rewrite leaves a line for every address.
func (q *freed) rewrite() error {
	var text strings.Builder
	for _, addr := range slices.SortedFunc(maps.Keys(q.turn), func(a, b netip.Addr) int { return int(q.turn[a]) - int(q.turn[b]) }) {
		fmt.Fprintln(&text, addr)
	}
	temp := q.path + ".new" // one name: a crash leaves at most one
	if err := os.WriteFile(temp, []byte(text.String()), 0o600); err != nil {
		return err
	}
	if err := os.Rename(temp, q.path); err != nil {
		return err
	}
	q.lines = len(q.turn)
	return nil
}

// oldest returns the family's address that has been free for longest. It stays in the queue.
func (q *freed) oldest(is4 bool) (netip.Addr, bool) {
	queue := q.queues[is4]
	for len(queue) > 0 && q.turn[queue[0].addr] != queue[0].turn {
		queue = queue[1:]
	}
	q.queues[is4] = queue
	if len(queue) == 0 {
		return netip.Addr{}, false
	}
	return queue[0].addr, true
}

func (q *freed) has(addr netip.Addr) bool { return q.turn[addr] > 0 }

// drop takes the address out of the queue. The file need not know: who holds an address is in the address's own file.
func (q *freed) drop(addr netip.Addr) { delete(q.turn, addr) }
