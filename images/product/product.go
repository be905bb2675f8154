// Package product defines the contents of the project's three container images.
package product

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/ovsdn/ovsdn/images/debian"
	"github.com/ovsdn/ovsdn/images/image"
	"github.com/ovsdn/ovsdn/pkg/version"
)

// Name of an image.
type Name string

// The images.
const (
	Controller Name = "controller"
	Node       Name = "node"
	OVS        Name = "ovs"
)

// All returns the images in the order of their names.
func All() []Name { return []Name{Controller, Node, OVS} }

// Repository returns the image's name in manifests, without a tag.
func (n Name) Repository() string { return "ovsdn/" + string(n) }

// Ref returns the full reference with a tag, as in a node's container runtime.
func (n Name) Ref(tag string) string { return "docker.io/" + n.Repository() + ":" + tag }

// MaxSize returns the limit of the unpacked image's size, in bytes.
func (n Name) MaxSize() int64 {
	switch n {
	case Controller:
		return 60_000_000
	default:
		return 120_000_000
	}
}

// Source is the input of images.
type Source struct {
	// Checkout is the root of a source tree, for the folder images.
	Checkout string
	// BinDir has the product's programs, static.
	BinDir string
	// Packages has the Debian packages.
	Packages debian.Store
	// Version is that of the programs.
	Version version.Info
	// Unpinned, if not nil, allows the versions of this system's apt where the pinned ones are unavailable, and is called with the reason.
	Unpinned func(why error)
}

// lockFile names the release and the architecture that packages are pinned for.
func lockFile() string { return "debian-12-" + runtime.GOARCH + ".lock" }

// LockPath returns the path of the image's lock file. The image of the controller has none.
func (s Source) LockPath(n Name) string {
	return filepath.Join(s.Checkout, "images", string(n), lockFile())
}

// Files returns the files of the image, with its bill of materials.
func (s Source) Files(ctx context.Context, n Name) ([]image.File, error) {
	files, err := s.files(ctx, n)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", n.Repository(), err)
	}
	return files, nil
}

func (s Source) files(ctx context.Context, n Name) ([]image.File, error) {
	materials := sbom{image: n, version: s.Version}
	var files []image.File
	for _, p := range programs(n) {
		source := filepath.Join(s.BinDir, filepath.Base(p))
		if err := materials.addProgram(source); err != nil {
			return nil, err
		}
		files = append(files, image.Program(p, source))
	}
	if n != Controller {
		lock, packaged, err := s.packaged(ctx, n)
		if err != nil {
			return nil, err
		}
		materials.addPackages(lock)
		files = append(files, packaged...)
	}
	switch n {
	case Node:
		files = append(files, nodeFiles()...)
	case OVS:
		start := filepath.Join(s.Checkout, "images", string(n), "ovs-start")
		files = append(files, ovsFiles(start)...)
	}
	content, err := materials.encode()
	if err != nil {
		return nil, err
	}
	return append(files, image.Text(sbomDir+SBOMFile(n), string(content))), nil
}

// programs returns the product's programs, by their paths in the image.
func programs(n Name) []string {
	switch n {
	case Controller:
		return []string{"/ovsdn-controller"}
	case Node:
		return []string{"/usr/bin/ovsdn-node", "/usr/bin/ovsdn-cni", "/usr/bin/portmap"}
	default:
		return nil
	}
}

// nodeFiles returns the links of iptables: iptables is the nf_tables backend, as in Debian; iptables-legacy is included. portmap runs iptables: its PATH
// on hosts with the legacy backend is a directory where that is iptables.
func nodeFiles() []image.File {
	files := []image.File{
		image.Text("/etc/passwd", "root:x:0:0:root:/root:/usr/sbin/nologin\n"),
		image.Text("/etc/group", "root:x:0:\n"),
	}
	for _, command := range []string{"iptables", "ip6tables"} {
		for _, part := range []string{"", "-save", "-restore"} {
			files = append(files, image.Symlink("/usr/sbin/"+command+part, command+"-nft"+part))
		}
	}
	for _, command := range []string{"iptables", "ip6tables"} {
		files = append(files, image.Symlink("/usr/lib/ovsdn/iptables-legacy/"+command, "/usr/sbin/xtables-legacy-multi"))
	}
	return files
}

// ovsFiles returns the files that the installation scripts of Debian's packages create, and the shell for the start script.
func ovsFiles(start string) []image.File {
	files := []image.File{
		image.Program("/usr/bin/ovs-start", start),
		image.Symlink("/usr/sbin/ovs-vswitchd", "../lib/openvswitch-switch/ovs-vswitchd"),
		image.Text("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\n"),
		image.Text("/etc/group", "root:x:0:\n"),
	}
	for _, applet := range []string{"sh", "cat", "ls", "mkdir", "rm", "sleep", "test", "ps"} {
		files = append(files, image.Symlink("/usr/bin/"+applet, "busybox"))
	}
	return files
}

// packaged returns the lock and the files of the image's Debian packages.
func (s Source) packaged(ctx context.Context, n Name) (debian.Lock, []image.File, error) {
	lock, err := debian.ReadLock(s.LockPath(n))
	if err != nil {
		return nil, nil, err
	}
	debs, err := s.Packages.Fetch(ctx, lock)
	if err != nil && s.Unpinned != nil {
		s.Unpinned(err)
		if lock, err = s.Packages.Newest(ctx, lock.Names()); err == nil {
			debs, err = s.Packages.Fetch(ctx, lock)
		}
	}
	if err != nil {
		return nil, nil, err
	}
	files, err := debian.Unpack(ctx, debs)
	if err != nil {
		return nil, nil, err
	}
	return lock, files, debian.CheckLibraries(files)
}

// Image returns the image, after a check of its size.
func (s Source) Image(ctx context.Context, n Name, tag string) (*image.Image, error) {
	files, err := s.Files(ctx, n)
	if err != nil {
		return nil, err
	}
	i := &image.Image{Ref: n.Ref(tag), Files: files, Labels: s.labels(n)}
	switch n {
	case Controller:
		i.Entrypoint, i.User = []string{"/ovsdn-controller"}, "65532:65532"
	case Node:
		i.Entrypoint, i.Env = []string{"/usr/bin/ovsdn-node"}, []string{pathEnv}
	case OVS:
		i.Entrypoint, i.Env = []string{"/usr/bin/ovs-start"}, []string{pathEnv}
	}
	size, err := i.Size()
	if err != nil {
		return nil, err
	}
	if size > n.MaxSize() {
		return nil, fmt.Errorf("image %s has %d bytes, more than the %d that it may have", n.Repository(), size, n.MaxSize())
	}
	return i, nil
}

const pathEnv = "PATH=/usr/sbin:/usr/bin"

// labels returns the labels of the image-spec (annotations.md).
func (s Source) labels(n Name) map[string]string {
	labels := map[string]string{
		"title": "ovsdn-" + string(n), "version": s.Version.Version, "revision": s.Version.Revision, "created": s.Version.Time().Format(time.RFC3339), "licenses": "Apache-2.0",
	}
	if n == OVS {
		labels["description"] = "Open vSwitch of Debian 12"
	}
	all := map[string]string{}
	for key, value := range labels {
		all["org.opencontainers.image."+key] = value
	}
	return all
}

// Key returns a digest of the image's input, without building the image: 12 hex digits, for a tag.
func (s Source) Key(n Name) (string, error) {
	key := sha256.New()
	// The version includes this program's code.
	fmt.Fprintln(key, s.Version, n)
	var inputs []string
	for _, p := range programs(n) {
		inputs = append(inputs, filepath.Join(s.BinDir, filepath.Base(p)))
	}
	if n != Controller {
		inputs = append(inputs, s.LockPath(n))
	}
	if n == OVS {
		inputs = append(inputs, filepath.Join(s.Checkout, "images", string(n), "ovs-start"))
	}
	for _, input := range inputs {
		content, err := os.ReadFile(input)
		if err != nil {
			return "", fmt.Errorf("image %s: %w", n.Repository(), err)
		}
		fmt.Fprintf(key, "%s %d\n", filepath.Base(input), len(content))
		key.Write(content)
	}
	return hex.EncodeToString(key.Sum(nil))[:12], nil
}
