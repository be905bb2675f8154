package image

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// LayOut writes files below a folder, the image's root. The folder should be empty, and is created if it does not exist.
func LayOut(files []File, dir string) error {
	l, err := newLayer(files)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, f := range l {
		at := filepath.Join(dir, f.Path)
		if err := f.layOut(at); err != nil {
			return fmt.Errorf("lay %s out: %w", f.Path, err)
		}
	}
	// Children come before their folders, whose times they change.
	for _, f := range slices.Backward(l) {
		if err := setTime(filepath.Join(dir, f.Path)); err != nil {
			return fmt.Errorf("lay %s out: %w", f.Path, err)
		}
	}
	return nil
}

// setTime sets the time of archives, also for a symlink itself.
func setTime(path string) error {
	at, err := unix.TimeToTimespec(epoch())
	if err != nil {
		return err
	}
	return unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{at, at}, unix.AT_SYMLINK_NOFOLLOW)
}

func (f File) layOut(at string) error {
	switch f.Mode.Type() {
	case fs.ModeSymlink:
		return os.Symlink(f.Target, at)
	case fs.ModeDir:
		// Chmod, since the umask restricts the mode of a new file.
		return errors.Join(os.MkdirAll(at, 0o755), os.Chmod(at, f.Mode))
	}
	content, _, err := f.open()
	if err != nil {
		return err
	}
	defer content.Close()
	out, err := os.OpenFile(at, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, content); err != nil {
		return errors.Join(err, out.Close())
	}
	return errors.Join(out.Close(), os.Chmod(at, f.Mode))
}
