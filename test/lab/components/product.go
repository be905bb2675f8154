package components

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/ovsdn/ovsdn/images/debian"
	"github.com/ovsdn/ovsdn/images/product"
	"github.com/ovsdn/ovsdn/pkg/version"
)

// ProductImages builds the images of the product from existing programs. They are not cached, since each change of the programs changes
// them.
type ProductImages struct {
	source product.Source
	dir    string
}

// NewProductImages uses the programs in binDir, and writes archives to dir.
func NewProductImages(o Options, binDir, dir string) *ProductImages {
	if o.CacheDir == "" {
		o.CacheDir = DefaultCacheDir
	}
	return &ProductImages{dir: dir, source: product.Source{
		Checkout: o.SourceDir, BinDir: binDir, Version: version.Get(),
		Packages: debian.Store{Dir: filepath.Join(o.CacheDir, "packages")},
		Unpinned: func(why error) {
			o.Progress("the images hold other versions of Debian's packages than a release would: %v", why)
		},
	}}
}

// Tag follows the image's content.
func (p *ProductImages) Tag(name product.Name) (string, error) {
	key, err := p.source.Key(name)
	return "lab-" + key, err
}

// Archive is where an image is, once Make has made it.
func (p *ProductImages) Archive(name product.Name, tag string) string {
	return filepath.Join(p.dir, string(name)+"-"+tag+".tar")
}

// Make writes the archive of an image unless it exists, and removes those of other tags.
func (p *ProductImages) Make(ctx context.Context, name product.Name, tag string) error {
	archive := p.Archive(name, tag)
	if _, err := os.Stat(archive); err == nil {
		return nil
	}
	i, err := p.source.Image(ctx, name, tag)
	if err != nil {
		return err
	}
	old, err := filepath.Glob(p.Archive(name, "*"))
	if err != nil {
		return err
	}
	if err := writeArchive(archive, i.Write); err != nil {
		return fmt.Errorf("write the image %s: %w", i.Ref, err)
	}
	for _, path := range old {
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("remove an old image: %w", err)
		}
	}
	return nil
}

// writeArchive leaves the whole file or none.
func writeArchive(path string, write func(io.Writer) error) error {
	f, err := os.Create(path + ".next")
	if err != nil {
		return err
	}
	defer f.Close()
	if err := write(f); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(path+".next", path)
}
