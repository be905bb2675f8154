package cniserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/pkg/version"
)

// maxSocketPath is sizeof(sockaddr_un.sun_path) less its final zero (unix(7)). The kernel's error is only "invalid argument".
const maxSocketPath = 107

// lockSuffix is the lock beside the socket, by the suffix of its name. A running agent holds it.
const lockSuffix = ".lock"

// Listener is the agent's end of the socket. It holds the lock beside the socket until Close.
type Listener struct {
	*socket

	mu   sync.Mutex // excludes Restore and Close
	lock *os.File
}

// Close removes the socket and releases the lock. A second Close does nothing.
func (l *Listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.socket.Close()
	if closeErr := l.lock.Close(); !errors.Is(closeErr, fs.ErrClosed) {
		err = errors.Join(err, closeErr)
	}
	return err
}

// RemoveLock removes the lock's file while it is held, in an uninstallation.
func (l *Listener) RemoveLock() error {
	if err := os.Remove(l.lock.Name()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the socket's lock: %w", err)
	}
	return nil
}

// Listen creates the socket, mode 0600, in a directory that only root can write (created with mode 0700 if missing). The socket accepts
// connections before it gets its name. It replaces the socket of an agent that ended. If another agent runs, the error is IsInUse: that
// agent holds the lock of the file beside the socket, which the kernel releases when its process ends.
func Listen(path string) (*Listener, error) {
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("socket path %s is longer than the %d bytes that unix sockets allow", path, maxSocketPath)
	}
	dir := filepath.Dir(path)
	if err := privateDirectory(dir); err != nil {
		return nil, err
	}
	lock, err := acquire(path + lockSuffix)
	if err != nil {
		return nil, err
	}
	l := &Listener{lock: lock, socket: &socket{path: path}}
	if err := l.bind(); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return l, nil
}

// InUseError is the error if another agent serves the socket.
type InUseError struct {
	Path   string
	Holder string // its version and start time, from the lock's file; may be empty
}

func (e *InUseError) Error() string {
	return fmt.Sprintf("another agent holds %s (%s): stop it first, only one can run on a node", e.Path, cmp.Or(e.Holder, "version unknown"))
}

// maxHolder limits the bytes read from the lock's file.
const maxHolder = 200

// IsInUse reports whether another running agent holds the socket.
func IsInUse(err error) bool {
	var e *InUseError
	return errors.As(err, &e)
}

// privateDirectory creates the directory, or checks that only root can create sockets in it. It does not change the mode of an existing
// directory, which may be /run.
func privateDirectory(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("create the socket's directory: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return fmt.Errorf("check the socket's directory: %w", &fs.PathError{Op: "stat", Path: dir, Err: err})
	}
	if int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		return fmt.Errorf("the socket's directory %s (uid %d, mode %#o) can be changed by others: chown it to root and chmod go-w it",
			dir, st.Uid, st.Mode&0o7777)
	}
	return nil
}

func acquire(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the socket's lock: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, &InUseError{Path: path, Holder: holderOf(path)}
		}
		return nil, fmt.Errorf("lock the socket: %w", &fs.PathError{Op: "flock", Path: path, Err: err})
	}
	self := fmt.Sprintf("ovsdn-node %s, started %s", version.Get(), time.Now().UTC().Format(time.RFC3339))
	if err := errors.Join(f.Truncate(0), writeAt(f, self)); err != nil {
		return nil, errors.Join(fmt.Errorf("write to the socket's lock: %w", err), f.Close())
	}
	return f, nil
}

func writeAt(f *os.File, text string) error {
	_, err := f.WriteAt([]byte(text), 0)
	return err
}

// holderOf returns the content of the lock's file, which describes its holder.
func holderOf(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	text, _ := io.ReadAll(io.LimitReader(f, maxHolder)) // a part is sufficient
	return strings.ToValidUTF8(string(text), "")
}

// bindAndRename listens on a temporary name, restricts the mode, then renames the socket over a stale one.
func bindAndRename(path string) (*net.UnixListener, error) {
	// A short name: the longest path must still fit. The lock excludes other users of the name.
	temp := filepath.Join(filepath.Dir(path), ".s")
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	listener, err := new(net.ListenConfig).Listen(context.Background(), "unix", temp)
	if err != nil {
		return nil, err
	}
	unixListener := listener.(*net.UnixListener) // ListenConfig's type for "unix"
	unixListener.SetUnlinkOnClose(false)         // it is renamed
	if err := errors.Join(os.Chmod(temp, 0o600), os.Rename(temp, path)); err != nil {
		return nil, errors.Join(err, listener.Close(), os.Remove(temp))
	}
	return unixListener, nil
}
