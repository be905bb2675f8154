// Package atomicfile replaces files: readers find the previous or the new content, also after a crash of the process or the machine.
//
// The name of the temporary file is derived from that of the file, so a crash leaves at most one, which the next write replaces. Libraries such as
// google/renameio use random names, and an agent that crashes often fills the disk with their files.
package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Write replaces the file, or creates it with the mode less the umask. It writes to the file .NAME.tmp of the same directory and renames that. It syncs the file and the
// directory, which costs nothing in /run: tmpfs has no disk. After an error the file has the previous content, unless only the sync of the directory failed, and
// the temporary file is removed. Calls for the same file must not be concurrent.
func Write(path string, content []byte, mode os.FileMode) error {
	temp := tempName(path)
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) { // that of a crash could have another mode
		return err
	}
	if err := writeSynced(temp, content, mode); err != nil {
		return err
	}
	if err := os.Rename(temp, path); err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// tempName returns the path of the temporary file. It begins with a dot and has the file's suffix no longer, so programs that list files by their suffix skip it.
func tempName(path string) string {
	return filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".tmp")
}

// writeSynced creates the file and writes it to the disk. After an error the file does not exist.
func writeSynced(path string, content []byte, mode os.FileMode) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}
