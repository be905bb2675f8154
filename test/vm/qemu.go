package vm

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

const qemu = "qemu-system-x86_64"

// run starts QEMU and waits for it to end.
func (m machine) run(ctx context.Context) (int, error) {
	program, err := exec.LookPath(qemu)
	if err != nil {
		return 0, fmt.Errorf("%w (Debian's package qemu-system-x86 has it)", err)
	}
	cmd := exec.CommandContext(ctx, program, m.arguments()...)
	cmd.Stdout, cmd.Stderr = m.Output, m.Output
	// QEMU must not outlive this process, however that ends; a terminal's interrupt is this process' to pass on.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	ended := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread's mounts end with it
		if err := m.mountRoot(); err != nil {
			ended <- fmt.Errorf("mount the root file system for the virtual machine: %w", err)
			return
		}
		ended <- cmd.Run()
	}()
	if err := <-ended; err != nil {
		return 0, fmt.Errorf("%s: %w", qemu, err)
	}
	return m.exitCode()
}

// mountRoot makes what the guest gets to see, in a mount namespace of this thread's own: the root file system without the
// mounts on it, since the 9p server trips over /proc and its like, and then what lies on other file systems and is needed.
func (m machine) mountRoot() error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return err
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("/", m.path("root"), "", unix.MS_BIND, ""); err != nil {
		return err
	}
	root, err := device("/")
	if err != nil {
		return err
	}
	for _, dir := range []string{m.Dir, m.CacheDir} {
		switch dev, err := device(dir); {
		case err != nil:
			return err
		case dev == root:
			continue
		}
		if err := unix.Mount(dir, m.path("root", dir), "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("%s: %w", dir, err)
		}
	}
	return nil
}

func device(path string) (uint64, error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	return info.Sys().(*syscall.Stat_t).Dev, nil
}

func (m machine) arguments() []string {
	return []string{
		"-accel", "tcg,thread=multi", "-cpu", "max", "-smp", strconv.Itoa(m.CPUs), "-m", strconv.Itoa(m.MemoryMiB),
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-kernel", m.kernel.image(), "-initrd", m.path("initramfs"),
		// The clock is not the processor's own: on a busy machine the kernel measures that wrong, by up to a factor of five. And
		// a test machine needs none of the protections, each of which costs an emulated one dearly.
		"-append", "console=ttyS0 quiet panic=-1 clocksource=acpi_pm no_timer_check mitigations=off nokaslr random.trust_cpu=on selinux=0 apparmor=0 audit=0",
		"-serial", "file:" + m.path("console"),
		"-device", "virtio-serial-pci", "-chardev", "stdio,id=output,signal=off", "-device", "virtconsole,chardev=output",
		"-fsdev", "local,id=host,readonly=on,security_model=none,multidevs=remap,path=" + m.path("root"),
		"-device", "virtio-9p-pci,fsdev=host,mount_tag=host",
		"-fsdev", "local,id=control,security_model=none,path=" + m.path("control"),
		"-device", "virtio-9p-pci,fsdev=control,mount_tag=control",
	}
}
