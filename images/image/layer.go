package image

import (
	"archive/tar"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// File is one entry of an image, owned by root.
type File struct {
	// Path is where the entry lies in the image: absolute and clean.
	Path string
	// Mode holds the permissions (with fs.ModeSticky and the like) and the type: regular, fs.ModeDir or fs.ModeSymlink.
	Mode fs.FileMode
	// Source is the path, on this machine, of a regular file's content. If it is empty the content is Content.
	Source  string
	Content []byte
	// Target is what a symlink points to.
	Target string
}

// Program returns the entry of an executable, copied from source.
func Program(path, source string) File {
	return File{Path: path, Mode: 0o755, Source: source}
}

// Text returns the entry of a readable file with the given content.
func Text(path, content string) File {
	return File{Path: path, Mode: 0o644, Content: []byte(content)}
}

// Dir returns the entry of a folder, for an empty one or one whose permissions matter.
func Dir(path string, perm fs.FileMode) File {
	return File{Path: path, Mode: fs.ModeDir | perm}
}

// Symlink returns the entry of a symbolic link at path to target.
func Symlink(path, target string) File {
	return File{Path: path, Mode: fs.ModeSymlink | 0o777, Target: target}
}

// layer has the entries of a layer, parents before their children.
type layer []File

// newLayer joins all faults of the files in its error.
func newLayer(files []File) (layer, error) {
	byPath := map[string]File{}
	var errs []error
	for _, f := range files {
		if !path.IsAbs(f.Path) || path.Clean(f.Path) != f.Path || f.Path == "/" {
			errs = append(errs, fmt.Errorf("%q: a path must be absolute and clean, and not the root", f.Path))
			continue
		}
		if _, twice := byPath[f.Path]; twice {
			errs = append(errs, fmt.Errorf("%s is given twice", f.Path))
			continue
		}
		switch f.Mode.Type() {
		case 0, fs.ModeDir:
		case fs.ModeSymlink:
			if f.Target == "" {
				errs = append(errs, fmt.Errorf("%s: a symlink needs a target", f.Path))
			}
		default:
			errs = append(errs, fmt.Errorf("%s: can't hold a file of mode %s", f.Path, f.Mode))
		}
		byPath[f.Path] = f
	}
	for _, f := range files {
		for parent := path.Dir(f.Path); path.IsAbs(parent) && parent != "/"; parent = path.Dir(parent) {
			p, ok := byPath[parent]
			if ok && !p.Mode.IsDir() {
				errs = append(errs, fmt.Errorf("%s lies below %s, which is no folder", f.Path, parent))
			}
			if !ok {
				byPath[parent] = Dir(parent, 0o755)
			}
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	l := make(layer, 0, len(byPath))
	for _, f := range byPath {
		l = append(l, f)
	}
	slices.SortFunc(l, func(a, b File) int { return cmp.Compare(a.Path, b.Path) })
	return l, nil
}

// write writes the layer as a tar.
func (l layer) write(w io.Writer) error {
	archive := tar.NewWriter(w)
	for _, f := range l {
		if err := f.write(archive); err != nil {
			return fmt.Errorf("%s: %w", f.Path, err)
		}
	}
	return archive.Close()
}

// tarLayer implements v1.Layer as a tar without compression, since most archives never leave their machine.
type tarLayer struct {
	files  layer
	digest v1.Hash
	size   int64
}

// newTarLayer reads every source file, for the digest.
func newTarLayer(files []File) (*tarLayer, error) {
	l, err := newLayer(files)
	if err != nil {
		return nil, err
	}
	t := &tarLayer{files: l}
	content, err := t.Compressed()
	if err != nil {
		return nil, err
	}
	defer content.Close()
	t.digest, t.size, err = v1.SHA256(content)
	return t, err
}

func (t *tarLayer) Digest() (v1.Hash, error) { return t.digest, nil }

func (t *tarLayer) DiffID() (v1.Hash, error) { return t.digest, nil }

func (t *tarLayer) Size() (int64, error) { return t.size, nil }

func (t *tarLayer) MediaType() (types.MediaType, error) { return types.OCIUncompressedLayer, nil }

func (t *tarLayer) Uncompressed() (io.ReadCloser, error) { return t.Compressed() }

// Compressed returns the tar, which a goroutine writes until the reader is closed. It reads every source file.
func (t *tarLayer) Compressed() (io.ReadCloser, error) {
	r, w := io.Pipe()
	go func() { w.CloseWithError(t.files.write(w)) }()
	return r, nil
}

func (f File) write(archive *tar.Writer) error {
	name := strings.TrimPrefix(f.Path, "/")
	switch f.Mode.Type() {
	case fs.ModeDir:
		return archive.WriteHeader(header(name+"/", tar.TypeDir, f.Mode, 0))
	case fs.ModeSymlink:
		h := header(name, tar.TypeSymlink, f.Mode, 0)
		h.Linkname = f.Target
		return archive.WriteHeader(h)
	}
	content, size, err := f.open()
	if err != nil {
		return err
	}
	defer content.Close()
	if err := archive.WriteHeader(header(name, tar.TypeReg, f.Mode, size)); err != nil {
		return err
	}
	_, err = io.Copy(archive, content)
	return err
}

func (f File) open() (content io.ReadCloser, size int64, err error) {
	if f.Source == "" {
		return io.NopCloser(bytes.NewReader(f.Content)), int64(len(f.Content)), nil
	}
	source, err := os.Open(f.Source)
	if err != nil {
		return nil, 0, err
	}
	info, err := source.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file", f.Source)
	}
	if err != nil {
		source.Close()
		return nil, 0, err
	}
	return source, info.Size(), nil
}

func header(name string, kind byte, mode fs.FileMode, size int64) *tar.Header {
	return &tar.Header{Typeflag: kind, Name: name, Mode: tarMode(mode), Size: size, ModTime: epoch()}
}

// tarMode converts the three special bits of package fs to those of tar (octal 4000, 2000, 1000).
func tarMode(mode fs.FileMode) int64 {
	bits := int64(mode.Perm())
	if mode&fs.ModeSetuid != 0 {
		bits |= 0o4000
	}
	if mode&fs.ModeSetgid != 0 {
		bits |= 0o2000
	}
	if mode&fs.ModeSticky != 0 {
		bits |= 0o1000
	}
	return bits
}
