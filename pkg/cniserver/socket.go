package cniserver

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
)

// socket is a listener whose socket file can be replaced. It does not hold the lock: requests that it accepted still run after Close, and no
// other agent may start before they end.
type socket struct {
	path string

	mu       sync.Mutex
	listener *net.UnixListener // replaced by bind
	file     fs.FileInfo       // of the listener's socket file
	closed   bool
}

// AcceptUnix accepts a connection on the current listener. It continues on the next one when bind replaces it.
func (s *socket) AcceptUnix() (*net.UnixConn, error) {
	for {
		listener := s.current()
		conn, err := listener.AcceptUnix()
		if errors.Is(err, net.ErrClosed) && s.current() != listener {
			continue
		}
		return conn, err
	}
}

func (s *socket) current() *net.UnixListener {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.listener
}

// Close removes the socket file, unless it was replaced by another program's, and stops accepting. A second Close does nothing.
func (s *socket) Close() error {
	named := s.isNamed()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	var err error
	if named {
		err = os.Remove(s.path)
	}
	return errors.Join(err, s.listener.Close())
}

// bind creates the socket, and closes the previous listener.
func (s *socket) bind() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("listen on %s: %w", s.path, net.ErrClosed)
	}
	listener, err := bindAndRename(s.path)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", s.path, err)
	}
	file, err := os.Lstat(s.path)
	if err != nil {
		return errors.Join(fmt.Errorf("listen on %s: %w", s.path, err), listener.Close())
	}
	old := s.listener
	s.listener, s.file = listener, file
	if old != nil {
		return old.Close()
	}
	return nil
}

// isNamed reports whether the path still leads to the listener's socket.
func (s *socket) isNamed() bool {
	now, err := os.Lstat(s.path)
	s.mu.Lock()
	defer s.mu.Unlock()
	return err == nil && os.SameFile(now, s.file)
}

// Restore creates the socket and its lock again if either was deleted or replaced, and reports whether that was so. On an InUseError another
// agent holds a new lock, and this one must end.
func (l *Listener) Restore() (restored bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	locked, err := l.isLocked()
	if err != nil {
		return false, err
	}
	if locked && l.isNamed() {
		return false, nil
	}
	if err := privateDirectory(filepath.Dir(l.path)); err != nil {
		return false, err
	}
	if !locked {
		lock, err := acquire(l.path + lockSuffix)
		if err != nil {
			return false, err
		}
		old := l.lock
		l.lock = lock
		if err := old.Close(); err != nil {
			return false, fmt.Errorf("close the deleted lock: %w", err)
		}
	}
	return true, l.bind()
}

// isLocked reports whether the path still leads to the lock that is held: else another agent could lock a new file.
func (l *Listener) isLocked() (bool, error) {
	held, err := l.lock.Stat()
	if err != nil {
		return false, fmt.Errorf("find the lock of the CNI socket: %w", err)
	}
	named, err := os.Stat(l.path + lockSuffix)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, fmt.Errorf("find the lock of the CNI socket: %w", err)
	}
	return err == nil && os.SameFile(held, named), nil
}
