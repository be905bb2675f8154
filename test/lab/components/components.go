// Package components builds the programs that the lab runs: Kubernetes, CoreDNS, containerd and runc, from their Go modules, and the images
// of every node. It downloads only Go modules, and needs no container engine. The results are cached, so that only the first lab on a machine
// builds them.
//
// The folders kube, coredns, containerd and runc are separate Go modules, which pin the versions, so that the product's
// go.mod stays small.
package components

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/ovsdn/ovsdn/images/image"
)

// References of the images, which the nodes' containerd knows them by.
const (
	PauseRef = "localhost/pause:lab"
	PodRef   = "localhost/agnhost:lab"
	DNSRef   = "localhost/coredns:lab"
)

// DefaultCacheDir is the default folder of finished programs and images.
const DefaultCacheDir = "/var/cache/ovsdn-lab"

// Set names the built programs and image archives, all by absolute path.
type Set struct {
	// Kube is etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kubelet, kube-proxy and kubectl, chosen
	// by its first argument or by the name of a symlink to it.
	Kube       string
	Containerd string
	Shim       string // containerd-shim-runc-v2
	Ctr        string
	Runc       string
	Agnhost    string
	PauseImage string // archive with reference PauseRef
	PodImage   string // archive with reference PodRef: agnhost, busybox and iperf3
	DNSImage   string // archive with reference DNSRef: CoreDNS
}

// Options configures the source and the cache.
type Options struct {
	// SourceDir is the root of a checkout: the folder that holds test/lab/components.
	SourceDir string
	// CacheDir is the folder of finished programs, and under logs of the build logs; empty means DefaultCacheDir.
	CacheDir string
	// Progress is called with one line for each step that takes time. It may be nil.
	Progress func(format string, args ...any)
}

// Build returns the set, making only what is missing, one thing at a time. With nothing cached, not even by Go, it
// takes about nine minutes on two cores; with all of it there, a fraction of a second. Builds in other processes
// may run at the same time, and one that is killed leaves nothing half-made. An error names the component and, where
// the compiler has spoken, its log file.
func Build(ctx context.Context, o Options) (*Set, error) {
	b, err := newBuilder(ctx, o)
	if err != nil {
		return nil, err
	}
	set := &Set{}
	var pause, coreDNS string
	for _, step := range []struct {
		program program
		path    *string
	}{
		{kube(b.kubernetes), &set.Kube},
		{agnhost(), &set.Agnhost},
		{containerd("containerd"), &set.Containerd},
		{containerd("containerd-shim-runc-v2"), &set.Shim},
		{containerd("ctr"), &set.Ctr},
		{runc(), &set.Runc},
		{coreDNSProgram(), &coreDNS},
		{pauseProgram(), &pause},
	} {
		if *step.path, err = b.program(ctx, step.program); err != nil {
			return nil, fmt.Errorf("build %s: %w", step.program.name, err)
		}
	}
	contents, err := findPodContents(ctx, set.Agnhost)
	if err != nil {
		return nil, fmt.Errorf("make the image %s: %w", PodRef, err)
	}
	for _, step := range []struct {
		name  string
		image *image.Image
		path  *string
	}{
		{"pause.tar", pauseImage(pause), &set.PauseImage},
		{"agnhost.tar", podImage(contents), &set.PodImage},
		{"coredns.tar", dnsImage(coreDNS), &set.DNSImage},
	} {
		if *step.path, err = b.image(ctx, step.name, step.image); err != nil {
			return nil, fmt.Errorf("make the image %s: %w", step.image.Ref, err)
		}
	}
	return set, nil
}

// builder makes components from one checkout into one cache.
type builder struct {
	modules    string // the folder test/lab/components of the checkout
	kubernetes string // version that the module kube pins
	cache      cache
	toolchain  toolchain
	progress   func(format string, args ...any)
}

func newBuilder(ctx context.Context, o Options) (*builder, error) {
	if o.CacheDir == "" {
		o.CacheDir = DefaultCacheDir
	}
	if o.Progress == nil {
		o.Progress = func(string, ...any) {}
	}
	source, err := filepath.Abs(o.SourceDir)
	if err != nil {
		return nil, fmt.Errorf("source folder: %w", err)
	}
	dir, err := filepath.Abs(o.CacheDir)
	if err != nil {
		return nil, fmt.Errorf("cache folder: %w", err)
	}
	b := &builder{
		modules:  filepath.Join(source, "test", "lab", "components"),
		cache:    cache{dir: dir, progress: o.Progress},
		progress: o.Progress,
	}
	goMod, err := os.ReadFile(filepath.Join(b.modules, "kube", "go.mod"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%s is no checkout of ovsdn: name the folder that holds test/lab/components: %w", source, err)
	}
	if err != nil {
		return nil, err
	}
	if b.kubernetes, err = requiredVersion(goMod, "k8s.io/kubernetes"); err != nil {
		return nil, err
	}
	if b.toolchain, err = findToolchain(ctx, source); err != nil {
		return nil, err
	}
	return b, nil
}
