package pods

import (
	"context"
	"sync"
)

// keyedLock is a mutex per key. Waiting ends with the context. Unused locks take no memory.
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

// lock waits for the key's lock and returns the function that unlocks it.
func (k keyedLock) lock(ctx context.Context, key string) (unlock func(), err error) {
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

// try locks the key if no other goroutine holds the lock or waits for it.
func (k keyedLock) try(key string) (unlock func(), ok bool) {
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
func (k keyedLock) add(key string) *countedLock {
	l := &countedLock{free: make(chan struct{}, 1)}
	l.free <- struct{}{}
	k.locks[key] = l
	return l
}

func (k keyedLock) unlock(key string, l *countedLock) {
	l.free <- struct{}{}
	k.release(key, l)
}

func (k keyedLock) release(key string, l *countedLock) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l.users--; l.users == 0 {
		delete(k.locks, key)
	}
}
