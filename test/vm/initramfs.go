package vm

import (
	"bufio"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

//go:embed init.sh
var initScript []byte

// busybox must be a static one: the initramfs has no libraries.
const busybox = "/bin/busybox"

// writeInitramfs writes the archive that the kernel unpacks as its first root file system: init, a shell, and the
// modules in the order given.
func writeInitramfs(name string, modules []string) (err error) {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	a := archive{w: bufio.NewWriter(f)}
	for _, dir := range []string{"bin", "dev", "host", "modules", "proc", "root", "written"} {
		a.add(dir, modeDir|0o755, nil)
	}
	a.add("init", modeFile|0o755, initScript)
	a.addFile("bin/busybox", busybox)
	for _, applet := range []string{"chroot", "insmod", "mkdir", "mount", "sh"} {
		a.add("bin/"+applet, modeLink|0o777, []byte("busybox"))
	}
	for i, m := range modules {
		a.addFile(fmt.Sprintf("modules/%03d-%s", i, filepath.Base(m)), m)
	}
	a.add("TRAILER!!!", 0, nil)
	return errors.Join(a.err, a.w.Flush())
}

// archive is a cpio archive in the format "newc" (Documentation/driver-api/early-userspace/buffer-format.rst of the kernel). It retains its
// first error.
type archive struct {
	w     *bufio.Writer
	inode int
	err   error
}

// The file types, as in stat(2).
const (
	modeDir  = 0o040000
	modeFile = 0o100000
	modeLink = 0o120000
)

func (a *archive) add(name string, mode int, content []byte) {
	if a.err != nil {
		return
	}
	a.inode++
	header := "070701"
	for _, field := range []int{a.inode, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0} {
		header += fmt.Sprintf("%08X", field)
	}
	a.write(header + name + "\x00")
	a.write(string(content))
}

// write pads to a multiple of four bytes.
func (a *archive) write(s string) {
	const padding = "\x00\x00\x00"
	if _, err := io.WriteString(a.w, s+padding[:(4-len(s)%4)%4]); err != nil && a.err == nil {
		a.err = err
	}
}

func (a *archive) addFile(name, source string) {
	content, err := os.ReadFile(source)
	if err != nil {
		a.err = errors.Join(a.err, err)
		return
	}
	a.add(name, modeFile|0o755, content)
}
