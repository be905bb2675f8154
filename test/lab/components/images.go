package components

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"strings"

	"github.com/ovsdn/ovsdn/images/image"
)

const pathEnv = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// image returns the path of the finished archive.
func (b *builder) image(ctx context.Context, name string, i *image.Image) (string, error) {
	id, err := i.ID()
	if err != nil {
		return "", err
	}
	return b.cache.get(ctx, name, newKey("OCI archive", i.Ref, id), func(out string) error {
		b.progress("making the image %s", i.Ref)
		f, err := os.Create(out)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := i.Write(f); err != nil {
			return err
		}
		return f.Close()
	})
}

func pauseImage(pause string) *image.Image {
	return &image.Image{
		Ref:        PauseRef,
		Entrypoint: []string{"/pause"},
		Env:        []string{pathEnv},
		Files:      []image.File{image.Program("/pause", pause)},
	}
}

// dnsImage has only the program: pods mount the configuration and the authorities of the API server.
func dnsImage(coreDNS string) *image.Image {
	return &image.Image{
		Ref:        DNSRef,
		Entrypoint: []string{"/coredns"},
		Env:        []string{pathEnv},
		Files:      []image.File{image.Program("/coredns", coreDNS)},
	}
}

// podContents are this machine's files that make up the pod image.
type podContents struct {
	agnhost string
	busybox string
	applets []string // of busybox
	iperf3  string
	// libraries are what busybox and iperf3 load, by the paths under which they look for it.
	libraries []string
}

func findPodContents(ctx context.Context, agnhost string) (podContents, error) {
	c := podContents{agnhost: agnhost}
	for _, program := range []struct {
		name string
		path *string
	}{{"busybox", &c.busybox}, {"iperf3", &c.iperf3}} {
		file, err := exec.LookPath(program.name)
		if err != nil {
			return c, fmt.Errorf("scripts/bootstrap.sh installs what is missing: %w", err)
		}
		*program.path = file
		libraries, err := sharedLibraries(ctx, file)
		if err != nil {
			return c, err
		}
		c.libraries = append(c.libraries, libraries...)
	}
	out, err := exec.CommandContext(ctx, c.busybox, "--list").Output()
	if err != nil {
		return c, fmt.Errorf("ask busybox for its applets: %w", err)
	}
	c.applets = strings.Fields(string(out))
	return c, nil
}

// podImage is what upstream's agnhost image is to its tests (entrypoint, default command, the folder that netexec
// uploads to), with busybox and iperf3 for people and for the lab's own measurements.
func podImage(c podContents) *image.Image {
	files := []image.File{
		image.Program("/agnhost", c.agnhost),
		image.Dir("/tmp", 0o777|fs.ModeSticky),
		image.Dir("/uploads", 0o755),
		image.Dir("/root", 0o700),
		image.Text("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"),
		image.Text("/etc/group", "root:x:0:\nnogroup:x:65534:\n"),
		image.Program("/bin/busybox", c.busybox),
		image.Program("/usr/bin/iperf3", c.iperf3),
	}
	seen := map[string]bool{"busybox": true}
	for _, applet := range c.applets {
		if !seen[applet] {
			seen[applet] = true
			files = append(files, image.Symlink(path.Join("/bin", applet), "/bin/busybox"))
		}
	}
	for _, library := range c.libraries {
		if !seen[library] {
			seen[library] = true
			files = append(files, image.Program(library, library))
		}
	}
	return &image.Image{Ref: PodRef, Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"}, Env: []string{pathEnv}, Files: files}
}
