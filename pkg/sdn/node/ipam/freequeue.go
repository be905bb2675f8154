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

// freeQueueFile is the name of the file that stores the order across restarts. It is not an address, so host-local ignores it.
const freeQueueFile = "freed"

// freeQueue is the queue of released addresses, least recently used first. Peers, conntrack and ARP caches may still have entries of the last
// pod with an address, so the queue is used only when each address has been allocated at least once.
//
// The file is a log with a line for each release; the last line of an address counts. Errors of the file are not fatal: without it the order is
// host-local's round-robin.
type freeQueue struct {
	path    string
	seq     map[netip.Addr]uint64 // sequence number of the last release
	lastSeq uint64
	queues  map[bool][]queuedAddr // by Is4; entries with an outdated sequence number are skipped
	lines   int                   // in the file
}

type queuedAddr struct {
	addr netip.Addr
	seq  uint64
}

// maxExtraLines is the number of outdated lines in the file that causes a rewrite.
const maxExtraLines = 1000

// loadFreeQueue reads the file, and skips addresses that are not free.
func loadFreeQueue(path string, isFree func(netip.Addr) bool) *freeQueue {
	q := &freeQueue{path: path, seq: map[netip.Addr]uint64{}, queues: map[bool][]queuedAddr{}}
	file, err := os.Open(path)
	if err != nil {
		return q
	}
	defer file.Close()
	q.read(file, isFree)
	return q
}

func (q *freeQueue) read(r io.Reader, isFree func(netip.Addr) bool) {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return // the last line was not written completely
		}
		q.lines++
		addr, err := netip.ParseAddr(strings.TrimSuffix(line, "\n"))
		if err == nil && isFree(addr) {
			q.append(addr)
		}
	}
}

func (q *freeQueue) append(addr netip.Addr) {
	q.lastSeq++
	q.seq[addr] = q.lastSeq
	q.queues[addr.Is4()] = append(q.queues[addr.Is4()], queuedAddr{addr, q.lastSeq})
}

// push appends the address to the queue. After an error the file does not contain it.
func (q *freeQueue) push(addr netip.Addr) error {
	q.append(addr)
	if q.lines > 2*len(q.seq)+maxExtraLines {
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

// rewrite writes the file with one line for each address. It does not use pkg/atomicfile, which would sync the file: callers hold the lock, for which ADDs wait, and a
// machine that crashes loses only the order.
func (q *freeQueue) rewrite() error {
	var text strings.Builder
	for _, addr := range slices.SortedFunc(maps.Keys(q.seq), func(a, b netip.Addr) int { return int(q.seq[a]) - int(q.seq[b]) }) {
		fmt.Fprintln(&text, addr)
	}
	temp := q.path + ".new" // one name: a crash leaves at most one
	err := os.WriteFile(temp, []byte(text.String()), 0o600)
	if err == nil {
		err = os.Rename(temp, q.path)
	}
	if err != nil {
		_ = os.Remove(temp) // it takes space on a full disk
		return err
	}
	q.lines = len(q.seq)
	return nil
}

// oldest returns the address of the family that was released first. It does not remove it from the queue.
func (q *freeQueue) oldest(is4 bool) (netip.Addr, bool) {
	queue := q.queues[is4]
	for len(queue) > 0 && q.seq[queue[0].addr] != queue[0].seq {
		queue = queue[1:]
	}
	q.queues[is4] = queue
	if len(queue) == 0 {
		return netip.Addr{}, false
	}
	return queue[0].addr, true
}

func (q *freeQueue) contains(addr netip.Addr) bool { return q.seq[addr] > 0 }

// remove removes the address from the queue, but not from the file: addresses with a lease are skipped when the file is read.
func (q *freeQueue) remove(addr netip.Addr) { delete(q.seq, addr) }
