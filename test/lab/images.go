package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"
)

// images are the archives that every node imports when it starts, in order.
func (l *Lab) images() ([]string, error) {
	entries, err := os.ReadDir(l.imageDir())
	if err != nil {
		return nil, fmt.Errorf("list the lab's images: %w", err)
	}
	var archives []string
	for _, e := range entries {
		if filepath.Ext(e.Name()) == ".tar" {
			archives = append(archives, filepath.Join(l.imageDir(), e.Name()))
		}
	}
	return archives, nil
}

// storeImages puts the images of every lab into its folder, which all nodes mount.
func (l *Lab) storeImages() error {
	if err := os.MkdirAll(l.imageDir(), 0o700); err != nil {
		return fmt.Errorf("make the lab's folder of images: %w", err)
	}
	programs := l.state.Programs
	for name, source := range map[string]string{"00-pause.tar": programs.PauseImage, "01-agnhost.tar": programs.PodImage, "02-coredns.tar": programs.DNSImage} {
		if err := share(source, filepath.Join(l.imageDir(), name)); err != nil {
			return fmt.Errorf("store the image %s: %w", source, err)
		}
	}
	return nil
}

// LoadImage imports an image archive (of Docker or OCI format) into every node, and into nodes that come later.
func (l *Lab) LoadImage(ctx context.Context, archive string) error {
	return l.withLock(ctx, func(string, ...any) {}, func() error {
		existing, err := l.images()
		if err != nil {
			return err
		}
		// Numbered, since a later one may hold a newer image of the same name.
		stored := filepath.Join(l.imageDir(), fmt.Sprintf("%02d-loaded.tar", len(existing)))
		if err := copyFile(archive, stored); err != nil {
			return fmt.Errorf("load the image: %w", err)
		}
		group, ctx := errgroup.WithContext(ctx)
		for _, node := range l.Nodes() {
			group.Go(func() error {
				if _, stderr, err := l.Exec(ctx, node, importCommand(stored)...); err != nil {
					return fmt.Errorf("load the image into %s: %w: %s", node, err, stderr)
				}
				return nil
			})
		}
		if err := group.Wait(); err != nil {
			// An image that one node refuses would prevent later nodes from starting.
			return errors.Join(err, os.Remove(stored))
		}
		return nil
	})
}

// share is copyFile for files of the cache, which are replaced but never written into: a link costs nothing.
func share(source, target string) error {
	if err := os.Remove(target); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if os.Link(source, target) == nil {
		return nil
	}
	return copyFile(source, target)
}

func copyFile(source, target string) error {
	in, err := os.Open(source)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(target+".next", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		return errors.Join(err, out.Close())
	}
	if err := out.Close(); err != nil {
		return err
	}
	return os.Rename(target+".next", target)
}
