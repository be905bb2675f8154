package debian

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// DefaultDir is the folder of packages, beside the lab's other downloads.
const DefaultDir = "/var/cache/ovsdn-lab/packages"

// Store is a folder of package files, named by their SHA-256, so that only the first build needs the network.
type Store struct {
	Dir string
}

func (s Store) path(sum string) string { return filepath.Join(s.Dir, sum+".deb") }

// Fetch returns the paths of the pinned package files, in the lock's order. Those that are not in the store come from apt.
func (s Store) Fetch(ctx context.Context, l Lock) ([]string, error) {
	var paths, wanted []string
	for _, p := range l {
		paths = append(paths, s.path(p.SHA256))
		if sum, err := sumOf(s.path(p.SHA256)); err != nil || sum != p.SHA256 {
			wanted = append(wanted, p.Name+"="+p.Version)
		}
	}
	if len(wanted) == 0 {
		return paths, nil
	}
	got, err := s.download(ctx, wanted)
	if err != nil {
		return nil, fmt.Errorf("%w\nDebian's archive has newer versions, or this is another release: pin the current versions with \"go run ./images/build lock\", "+
			"or point apt at a snapshot of the archive", err)
	}
	return paths, verify(l, got)
}

func verify(l Lock, got []Pin) error {
	byName := map[string]Pin{}
	for _, p := range got {
		byName[p.Name] = p
	}
	var errs []error
	for _, p := range l {
		if g, ok := byName[p.Name]; ok && g != p {
			errs = append(errs, fmt.Errorf("package %s: got version %s with SHA-256 %s, pinned are %s and %s", p.Name, g.Version, g.SHA256, p.Version, p.SHA256))
		}
	}
	return errors.Join(errs...)
}

// Newest returns the lock of the versions that apt would install now.
func (s Store) Newest(ctx context.Context, names []string) (Lock, error) {
	got, err := s.download(ctx, names)
	if err != nil {
		return nil, err
	}
	var l Lock
	for _, name := range names {
		for _, p := range got {
			if p.Name == name {
				l = append(l, p)
			}
		}
	}
	if len(l) != len(names) {
		return nil, fmt.Errorf("asked apt for %s, got %d packages", strings.Join(names, ", "), len(l))
	}
	return l, nil
}

// download runs apt to fetch packages ("NAME" or "NAME=VERSION") into the store, and returns their versions and sums.
func (s Store) download(ctx context.Context, packages []string) ([]Pin, error) {
	if err := os.MkdirAll(s.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("folder of packages: %w", err)
	}
	dir, err := os.MkdirTemp(s.Dir, "unfinished-")
	if err != nil {
		return nil, fmt.Errorf("folder of packages: %w", err)
	}
	defer os.RemoveAll(dir)
	if err := aptDownload(ctx, dir, packages); err != nil {
		return nil, err
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil {
		return nil, err
	}
	var got []Pin
	for _, file := range files {
		p, err := identify(ctx, file)
		if err != nil {
			return nil, err
		}
		if err := os.Rename(file, s.path(p.SHA256)); err != nil {
			return nil, err
		}
		got = append(got, p)
	}
	return got, nil
}

// aptDownload updates apt's lists and retries once, since a new machine has no lists.
func aptDownload(ctx context.Context, dir string, packages []string) error {
	err := apt(ctx, dir, append([]string{"download"}, packages...)...)
	if err == nil {
		return nil
	}
	if updateErr := apt(ctx, dir, "update"); updateErr != nil {
		return errors.Join(err, updateErr)
	}
	return apt(ctx, dir, append([]string{"download"}, packages...)...)
}

// apt runs apt-get, which uses this machine's sources, mirrors and keys, and checks the archive's signatures.
func apt(ctx context.Context, dir string, args ...string) error {
	// As root, apt would leave downloads to a user who can't write here.
	cmd := exec.CommandContext(ctx, "apt-get", append([]string{"-qq", "-o", "APT::Sandbox::User=root"}, args...)...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("apt-get %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}

// identify reads the name and version of a package with dpkg-deb.
func identify(ctx context.Context, file string) (Pin, error) {
	sum, err := sumOf(file)
	if err != nil {
		return Pin{}, err
	}
	out, err := exec.CommandContext(ctx, "dpkg-deb", "--show", "--showformat=${Package} ${Version}", file).Output()
	if err != nil {
		return Pin{}, fmt.Errorf("read the package %s: %w", file, err)
	}
	name, version, _ := strings.Cut(string(out), " ")
	return Pin{Name: name, Version: version, SHA256: sum}, nil
}

func sumOf(file string) (string, error) {
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(hash.Sum(nil)), nil
}
