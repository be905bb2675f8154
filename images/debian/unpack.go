package debian

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os/exec"
	"path"
	"slices"
	"strings"

	"github.com/ovsdn/ovsdn/images/image"
)

// Unpack returns the files of packages, without those that no image needs, laid out as on a system with merged /usr. For each package it
// adds Debian's description in /var/lib/dpkg/status.d, which scanners read.
func Unpack(ctx context.Context, debs []string) ([]image.File, error) {
	files := mergedUsr()
	for _, deb := range debs {
		unpacked, err := unpack(ctx, deb)
		if err != nil {
			return nil, fmt.Errorf("unpack %s: %w", deb, err)
		}
		files = append(files, unpacked...)
	}
	return dedupe(files)
}

// mergedUsr are the links of a merged /usr, such as /bin, and /var/run. On a Debian system, packages' scripts create them.
func mergedUsr() []image.File {
	files := []image.File{image.Symlink("/var/run", "../run")}
	for _, dir := range merged() {
		files = append(files, image.Dir("/usr/"+dir, 0o755), image.Symlink("/"+dir, "usr/"+dir))
	}
	return files
}

func merged() []string { return []string{"bin", "lib", "lib64", "sbin"} }

// unpack runs dpkg-deb, which every system with apt-get has: packages are compressed by xz or zstd, and Go's library reads neither.
func unpack(ctx context.Context, deb string) ([]image.File, error) {
	control, err := exec.CommandContext(ctx, "dpkg-deb", "--field", deb).Output()
	if err != nil {
		return nil, err
	}
	name, err := exec.CommandContext(ctx, "dpkg-deb", "--field", deb, "Package").Output()
	if err != nil {
		return nil, err
	}
	content, err := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", deb).Output()
	if err != nil {
		return nil, err
	}
	files, err := readTar(bytes.NewReader(content))
	return append(files, image.Text("/var/lib/dpkg/status.d/"+strings.TrimSpace(string(name)), string(control))), err
}

func readTar(r io.Reader) ([]image.File, error) {
	var files []image.File
	archive := tar.NewReader(r)
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, err
		}
		at := place(h.Name)
		if at == "/" || unwanted(at) {
			continue
		}
		f := image.File{Path: at, Mode: h.FileInfo().Mode(), Target: h.Linkname}
		switch h.Typeflag {
		case tar.TypeReg:
			if f.Content, err = io.ReadAll(archive); err != nil {
				return nil, err
			}
		case tar.TypeDir, tar.TypeSymlink:
		default:
			return nil, fmt.Errorf("%s is neither file, folder nor symbolic link", h.Name)
		}
		files = append(files, f)
	}
}

// place returns the path in the image for a path in a package.
func place(name string) string {
	at := path.Clean("/" + name)
	if rest, ok := strings.CutPrefix(at+"/", "/var/run/"); ok {
		return path.Clean("/run/" + rest)
	}
	top, _, _ := strings.Cut(at[1:], "/")
	if slices.Contains(merged(), top) {
		return "/usr" + at
	}
	return at
}

// unwanted are documents (except licences), translations, character sets, and files for building and package management.
func unwanted(at string) bool {
	if strings.HasPrefix(at, "/usr/share/doc/") {
		return path.Base(at) != "copyright"
	}
	if strings.Contains(at+"/", "/gconv/") {
		return true
	}
	return slices.ContainsFunc([]string{
		"/usr/share/man", "/usr/share/locale", "/usr/share/lintian", "/usr/share/bug", "/usr/share/bash-completion", "/usr/share/info",
		"/usr/share/initramfs-tools", "/usr/share/doc-base", "/usr/share/base-files",
		"/usr/lib/systemd", "/usr/lib/tmpfiles.d", "/etc/init.d", "/etc/network", "/etc/logrotate.d", "/etc/update-motd.d",
	}, func(dir string) bool { return at == dir || strings.HasPrefix(at, dir+"/") })
}

// dedupe merges folders that several packages have; another shared path is an error.
func dedupe(files []image.File) ([]image.File, error) {
	byPath := map[string]fs.FileMode{}
	var unique []image.File
	for _, f := range files {
		mode, twice := byPath[f.Path]
		switch {
		case !twice:
			byPath[f.Path] = f.Mode
			unique = append(unique, f)
		case !f.Mode.IsDir() || !mode.IsDir():
			return nil, fmt.Errorf("two packages have %s", f.Path)
		}
	}
	return unique, nil
}
