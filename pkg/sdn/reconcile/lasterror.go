package reconcile

import "sync"

// LastError is the result of a repeated operation. It is safe for concurrent use.
type LastError struct {
	mu  sync.Mutex
	err error
}

// Set stores the result, and reports whether it is an error that differs from the previous result.
func (l *LastError) Set(err error) (isNew bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	isNew = err != nil && (l.err == nil || l.err.Error() != err.Error())
	l.err = err
	return isNew
}

// Get returns the error of the last operation, nil if it succeeded.
func (l *LastError) Get() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}
