package pods

import (
	"context"
	"sync"
)

// keyedLock is a mutex for each key. Waiting for one ends with its context, and locks that nobody holds take no memory.
type keyedLock struct {
	mu    *sync.Mutex
	locks map[string]*countedLock
}

type countedLock struct {
	free  chan struct{} // holds one token while the lock is free
	users int           // holder and waiters
}

func newKeyedLock() keyedLock {
	return keyedLock{mu: new(sync.Mutex), locks: map[string]*countedLock{}}
}

// lock waits for the key's lock and returns the function that gives it back.
func (k keyedLock) lock(ctx context.Context, key string) (unlock func(), err error) {
	l := k.join(key)
	select {
	case <-l.free:
		return func() {
			l.free <- struct{}{}
			k.leave(key)
		}, nil
	case <-ctx.Done():
		k.leave(key)
		return nil, ctx.Err()
	}
}

// try takes the key's lock if nobody holds it or waits for it.
func (k keyedLock) try(key string) (unlock func(), ok bool) {
	k.mu.Lock()
	busy := k.locks[key] != nil
	k.mu.Unlock()
	if busy {
		return nil, false
	}
	l := k.join(key)
	select {
	case <-l.free:
		return func() {
			l.free <- struct{}{}
			k.leave(key)
		}, true
	default: // somebody was quicker
		k.leave(key)
		return nil, false
	}
}

func (k keyedLock) join(key string) *countedLock {
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.locks[key]
	if l == nil {
		l = &countedLock{free: make(chan struct{}, 1)}
		l.free <- struct{}{}
		k.locks[key] = l
	}
	l.users++
	return l
}

func (k keyedLock) leave(key string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.locks[key]
	l.users--
	if l.users == 0 {
		delete(k.locks, key)
	}
}
