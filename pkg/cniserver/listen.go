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

// maxSocketPath is sizeof(sockaddr_un.sun_path) less its final zero (unix(7)). The kernel says only "invalid argument".
const maxSocketPath = 107

// lockSuffix ends the name of the lock beside the socket.
const lockSuffix = ".lock"

// Listener is the agent's end of the socket. It holds the lock beside the socket for as long as it lives.
type Listener struct {
	*socket

	mu   sync.Mutex // excludes Restore and Close
	lock *os.File
}

// Close removes the socket and gives the lock back. A second Close does nothing.
func (l *Listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.socket.Close()
	if closeErr := l.lock.Close(); !errors.Is(closeErr, fs.ErrClosed) {
		err = errors.Join(err, closeErr)
	}
	return err
}

// Forget removes the lock's file while it is still held, for an agent that no other follows.
func (l *Listener) Forget() error {
	if err := os.Remove(l.lock.Name()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the socket's lock: %w", err)
	}
	return nil
}

// Listen makes the socket, mode 0600, in a directory that only root can change (made with mode 0700 if it is missing). The
// socket appears under its name ready to accept, so a plugin never sees half of one. The socket of a dead agent is replaced.
// A living agent's is an error (IsInUse): the lock in a file beside it tells, which the kernel drops with its holder.
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

// InUseError says that another agent serves the socket.
type InUseError struct {
	Path   string
	Holder string // what it says of itself in the lock; may be empty
}

func (e *InUseError) Error() string {
	return fmt.Sprintf("another agent holds %s (%s): stop it first, only one can run on a node", e.Path, cmp.Or(e.Holder, "it does not say which"))
}

// maxHolder is how many bytes are read of what a holder says of itself.
const maxHolder = 200

// IsInUse tells whether another living agent holds the socket.
func IsInUse(err error) bool {
	var e *InUseError
	return errors.As(err, &e)
}

// privateDirectory makes the directory, or checks that nobody but root can put another socket into it. It does not change
// the mode of one that is there: it may be /run.
func privateDirectory(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the socket's directory: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return fmt.Errorf("look at the socket's directory: %w", &fs.PathError{Op: "stat", Path: dir, Err: err})
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

// holderOf returns what the agent that has the lock says of itself.
func holderOf(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	text, _ := io.ReadAll(io.LimitReader(f, maxHolder)) // what was read is good enough
	return strings.ToValidUTF8(string(text), "")
}

// bindAndRename listens under a name of its own, narrows the mode, then takes the wanted name, whatever stale socket has it.
func bindAndRename(path string) (*net.UnixListener, error) {
	// A short sibling: the longest path must still fit. The lock makes the name ours.
	temp := filepath.Join(filepath.Dir(path), ".s")
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	listener, err := new(net.ListenConfig).Listen(context.Background(), "unix", temp)
	if err != nil {
		return nil, err
	}
	unixListener := listener.(*net.UnixListener) // what ListenConfig gives for "unix"
	unixListener.SetUnlinkOnClose(false)         // it goes by another name soon
	if err := errors.Join(os.Chmod(temp, 0o600), os.Rename(temp, path)); err != nil {
		return nil, errors.Join(err, listener.Close(), os.Remove(temp))
	}
	return unixListener, nil
}
