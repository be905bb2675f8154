package debian

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"path"

	"github.com/ovsdn/ovsdn/images/image"
)

// CheckClosed fails if a program or library of the files needs a library that is not among them: a package is missing from the lock.
func CheckClosed(files []image.File) error {
	there := map[string]bool{}
	for _, f := range files {
		there[path.Base(f.Path)] = true
	}
	var errs []error
	for _, f := range files {
		if !bytes.HasPrefix(f.Content, []byte(elf.ELFMAG)) {
			continue
		}
		binary, err := elf.NewFile(bytes.NewReader(f.Content))
		if err != nil {
			return fmt.Errorf("%s: %w", f.Path, err)
		}
		needed, err := binary.ImportedLibraries()
		if err != nil {
			return fmt.Errorf("%s: %w", f.Path, err)
		}
		for _, library := range needed {
			if !there[library] {
				errs = append(errs, fmt.Errorf("%s needs %s, which no package of the image has", f.Path, library))
			}
		}
	}
	return errors.Join(errs...)
}
