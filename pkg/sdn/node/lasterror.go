package node

import "sync"

// lastError is the result of a repeated operation. It is safe for concurrent use.
type lastError struct {
	mu  sync.Mutex
	err error
}

// set stores the result, and reports whether it is an error that differs from the previous result.
func (l *lastError) set(err error) (isNew bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	isNew = err != nil && (l.err == nil || l.err.Error() != err.Error())
	l.err = err
	return isNew
}

func (l *lastError) get() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}
