package components

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// program is an executable that `go build` makes.
type program struct {
	name    string // of the file
	dir     string // below the modules' folder: the module, or the package within the product's own module
	pkg     string // import path, or "." for the package in dir
	ldflags string // besides those that all have
	tags    string
	cgo     bool
	cold    time.Duration // duration of a build without cache on two cores, for progress messages
}

// kube reports the version of the module that it is built from, as a release does. Without it a Kubernetes
// client reads "v0.0.0-master", and version skew checks fail.
func kube(version string) program {
	major, minor, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	minor, _, _ = strings.Cut(minor, ".")
	var ldflags []string
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		for _, setting := range []string{
			"gitVersion=" + version, "gitMajor=" + major, "gitMinor=" + minor, "gitTreeState=clean",
			"buildDate=1970-01-01T00:00:00Z", // a real date would make every build another one
		} {
			ldflags = append(ldflags, "-X "+pkg+"."+setting)
		}
	}
	return program{name: "kube", dir: "kube", pkg: ".", ldflags: strings.Join(ldflags, " "), cold: 6 * time.Minute}
}

func agnhost() program {
	return program{name: "agnhost", dir: "kube", pkg: "k8s.io/kubernetes/test/images/agnhost", cold: 45 * time.Second}
}

// containerd leaves out the snapshotters that need C libraries; the lab uses overlayfs.
func containerd(name string) program {
	p := program{
		name: name,
		dir:  "containerd",
		pkg:  "github.com/containerd/containerd/v2/cmd/" + name,
		tags: "no_btrfs no_devmapper no_zfs",
		cold: 5 * time.Second, // what is left once containerd itself is built
	}
	if name == "containerd" {
		p.cold = time.Minute
	}
	return p
}

// runc needs C for libseccomp, without which it refuses the default profile that containerd gives every container.
func runc() program {
	return program{name: "runc", dir: "runc", pkg: "github.com/opencontainers/runc", tags: "seccomp", cgo: true, cold: 15 * time.Second}
}

func coreDNSProgram() program {
	return program{name: "coredns", dir: "coredns", pkg: ".", cold: time.Minute}
}

func pauseProgram() program {
	return program{name: "pause", dir: "pause", pkg: ".", cold: time.Second}
}

// flags are the flags of `go build`, except the output's name.
func (p program) flags() []string {
	flags := []string{"-trimpath", "-ldflags", strings.TrimSpace("-s -w " + p.ldflags)}
	if p.tags != "" {
		flags = append(flags, "-tags", p.tags)
	}
	return append(flags, p.pkg)
}

// env is what distinguishes the build from whatever the user has set for builds of their own.
func (p program) env() []string {
	cgo := "0"
	if p.cgo {
		cgo = "1"
	}
	return []string{"CGO_ENABLED=" + cgo, "GOOS=linux", "GOARCH=" + runtime.GOARCH, "GOFLAGS=-buildvcs=false", "GOWORK=off"}
}

// program returns the path of the finished program.
func (b *builder) program(ctx context.Context, p program) (string, error) {
	dir := filepath.Join(b.modules, p.dir)
	k, err := b.programKey(p)
	if err != nil {
		return "", err
	}
	return b.cache.get(ctx, p.name, k, func(out string) error {
		logFile := filepath.Join(b.cache.dir, "logs", p.name+".log")
		b.progress("building %s (%s if Go has nothing cached; log in %s)", p.name, p.cold, logFile)
		start := time.Now()
		if err := b.toolchain.build(ctx, p, dir, out, logFile); err != nil {
			return err
		}
		b.progress("built %s in %s", p.name, time.Since(start).Round(100*time.Millisecond))
		return nil
	})
}

func (b *builder) programKey(p program) (key, error) {
	sources, err := readSources(filepath.Join(b.modules, p.dir))
	if err != nil {
		return key{}, err
	}
	return newKey(b.toolchain.version).add(p.env()...).add(p.flags()...).add(sources...), nil
}

// readSources returns the names and contents of the files in dir that a build depends on. Everything else comes from
// modules whose sums are in go.sum, or is Go's own.
func readSources(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var sources []string
	for _, e := range entries {
		name := e.Name()
		isSource := name == "go.mod" || name == "go.sum" || strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go")
		if !isSource {
			continue
		}
		content, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		sources = append(sources, name, string(content))
	}
	return sources, nil
}

// requiredVersion returns the version of a module that a go.mod requires.
func requiredVersion(goMod []byte, module string) (string, error) {
	for line := range bytes.Lines(goMod) {
		fields := strings.Fields(strings.TrimPrefix(string(line), "require "))
		if len(fields) >= 2 && fields[0] == module && strings.HasPrefix(fields[1], "v") {
			return fields[1], nil
		}
	}
	return "", fmt.Errorf("go.mod requires no version of %s", module)
}
