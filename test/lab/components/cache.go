package components

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	// unusedTime is how long an unused folder stays in the cache.
	unusedTime = 14 * 24 * time.Hour
	// unfinished starts the names of folders whose content is still being made.
	unfinished = "unfinished-"
	// keyLength is in hex digits: 64 bits, enough to distinguish a few dozen folders.
	keyLength = 16
)

// cache has the finished files. Each is in a folder NAME-KEY under its own name, so that another key creates another folder and programs
// that run from the old one continue. A folder is created atomically.
type cache struct {
	dir      string
	progress func(format string, args ...any)
}

// key is the digest of everything that a file is made from.
type key struct{ hash.Hash }

func newKey(parts ...string) key { return key{sha256.New()}.add(parts...) }

// add takes parts in such that no two lists of parts give the same key.
func (k key) add(parts ...string) key {
	fmt.Fprintf(k, "%d\n", len(parts))
	for _, p := range parts {
		fmt.Fprintf(k, "%d %s", len(p), p)
	}
	return k
}

func (k key) String() string { return hex.EncodeToString(k.Sum(nil))[:keyLength] }

// get returns the path of the file for key, which build writes if the cache has none. Only one build runs at a time,
// whatever the number of processes: the machine has no room for two such builds.
func (c cache) get(ctx context.Context, name string, k key, build func(path string) error) (string, error) {
	folder := filepath.Join(c.dir, name+"-"+k.String())
	file := filepath.Join(folder, name)
	if has(folder, file) {
		return file, nil
	}
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		return "", fmt.Errorf("make the cache folder, as root or elsewhere: %w", err)
	}
	unlock, err := c.lock(ctx)
	if err != nil {
		return "", err
	}
	defer unlock()
	if has(folder, file) { // created by the previous holder of the lock
		return file, nil
	}
	if err := c.prune(); err != nil {
		return "", fmt.Errorf("prune the cache: %w", err)
	}
	temporary, err := os.MkdirTemp(c.dir, unfinished+name+"-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(temporary)
	if err := os.Chmod(temporary, 0o755); err != nil {
		return "", err
	}
	if err := build(filepath.Join(temporary, name)); err != nil {
		return "", err
	}
	if err := flush(filepath.Join(temporary, name)); err != nil {
		return "", err
	}
	if err := os.Rename(temporary, folder); err != nil {
		return "", err
	}
	return file, nil
}

// has reports whether the cache has the file, and marks its folder as used.
func has(folder, file string) bool {
	if _, err := os.Stat(file); err != nil {
		return false // the next build reports any failure
	}
	now := time.Now()
	_ = os.Chtimes(folder, now, now) // a reader without the right to this only brings its pruning nearer
	return true
}

// lock waits for the cache's lock, which ends with the process that holds it.
func (c cache) lock(ctx context.Context) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(c.dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for attempt := 0; ; attempt++ {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		if attempt == 0 {
			c.progress("waiting for another build to finish (it holds %s)", f.Name())
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", f.Name(), context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// prune removes the remains of killed builds, and folders that were unused for long. It needs the lock: then no unfinished folder is in
// use.
func (c cache) prune() error {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		folder := filepath.Join(c.dir, e.Name())
		if !strings.HasPrefix(e.Name(), unfinished) && !c.unused(folder) {
			continue
		}
		if err := os.RemoveAll(folder); err != nil {
			return err
		}
	}
	return nil
}

// unused reports whether folder is a cache folder, NAME-KEY with NAME inside, that was unused for long. The user may have chosen a cache
// folder with other files.
func (c cache) unused(folder string) bool {
	base := filepath.Base(folder)
	cut := len(base) - keyLength - len("-")
	if cut <= 0 || base[cut] != '-' {
		return false
	}
	if _, err := hex.DecodeString(base[cut+1:]); err != nil {
		return false
	}
	if _, err := os.Stat(filepath.Join(folder, base[:cut])); err != nil {
		return false
	}
	info, err := os.Stat(folder)
	return err == nil && time.Since(info.ModTime()) > unusedTime
}

// flush brings a file to the disk, so that a power cut does not leave a finished folder with an empty file.
func flush(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}
