package debian

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"path"

	"github.com/ovsdn/ovsdn/images/image"
)

// CheckLibraries returns an error if a program or library among the files needs a library that is not among them: the lock lacks a package.
func CheckLibraries(files []image.File) error {
	names := map[string]bool{}
	for _, f := range files {
		names[path.Base(f.Path)] = true
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
			if !names[library] {
				errs = append(errs, fmt.Errorf("%s needs %s, which no package of the image has", f.Path, library))
			}
		}
	}
	return errors.Join(errs...)
}
