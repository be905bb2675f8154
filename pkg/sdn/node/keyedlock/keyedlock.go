// Package keyedlock has a mutex for each key of a set that is not known before. Requests of one sandbox wait for each other with it, and not for those of other
// sandboxes. Waiting ends with the context, unlike that for a sync.Mutex.
package keyedlock

import (
	"context"
	"sync"
)

// Locks is a mutex per key. Waiting ends with the context. Unused locks take no memory.
type Locks struct {
	mu    *sync.Mutex
	locks map[string]*countedLock
}

type countedLock struct {
	free  chan struct{} // holds one token while the lock is free
	users int           // holder and waiters
}

// New returns locks that are all free.
func New() Locks {
	return Locks{mu: new(sync.Mutex), locks: map[string]*countedLock{}}
}

// Lock waits for the key's lock and returns the function that unlocks it.
func (k Locks) Lock(ctx context.Context, key string) (unlock func(), err error) {
	k.mu.Lock()
	l := k.locks[key]
	if l == nil {
		l = k.add(key)
	}
	l.users++
	k.mu.Unlock()
	select {
	case <-l.free:
		return func() { k.unlock(key, l) }, nil
	case <-ctx.Done():
		k.release(key, l)
		return nil, ctx.Err()
	}
}

// TryLock locks the key if no other goroutine holds the lock or waits for it.
func (k Locks) TryLock(key string) (unlock func(), ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.locks[key] != nil {
		return nil, false
	}
	l := k.add(key)
	l.users++
	<-l.free
	return func() { k.unlock(key, l) }, true
}

// add adds a free lock. The caller holds mu.
func (k Locks) add(key string) *countedLock {
	l := &countedLock{free: make(chan struct{}, 1)}
	l.free <- struct{}{}
	k.locks[key] = l
	return l
}

// Len returns the number of keys whose lock is held or waited for.
func (k Locks) Len() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.locks)
}

func (k Locks) unlock(key string, l *countedLock) {
	l.free <- struct{}{}
	k.release(key, l)
}

func (k Locks) release(key string, l *countedLock) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l.users--; l.users == 0 {
		delete(k.locks, key)
	}
}
