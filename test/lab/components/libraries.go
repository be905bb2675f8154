package components

import (
	"context"
	"debug/elf"
	"fmt"
	"os/exec"
	"path"
	"slices"
	"strings"
)

// sharedLibraries returns the paths of what the dynamic linker loads for a program, the linker itself included. They
// are none for a static program. It runs ldd, which asks the linker itself: where that looks is the system's configuration.
func sharedLibraries(ctx context.Context, program string) ([]string, error) {
	f, err := elf.Open(program)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", program, err)
	}
	defer f.Close()
	dynamic := slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
	if !dynamic {
		return nil, nil
	}
	out, err := exec.CommandContext(ctx, "ldd", program).Output()
	if err != nil {
		return nil, fmt.Errorf("ldd %s: %w", program, err)
	}
	libraries, err := parseLdd(string(out))
	if err != nil {
		return nil, fmt.Errorf("ldd %s: %w", program, err)
	}
	return libraries, nil
}

// parseLdd reads lines of these shapes:
//
//	linux-vdso.so.1 (0x00007ffd…)                          the kernel's own, no file
//	libm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x00007f…)
//	libm.so.6 => not found
//	/lib64/ld-linux-x86-64.so.2 (0x00007f…)                the linker
func parseLdd(out string) ([]string, error) {
	var libraries []string
	for line := range strings.Lines(out) {
		name, file, found := strings.Cut(strings.TrimSpace(line), " => ")
		if !found {
			file = name
		}
		if file == "not found" {
			return nil, fmt.Errorf("the library %s is not installed", name)
		}
		file, _, _ = strings.Cut(file, " (0x")
		if !path.IsAbs(file) {
			continue
		}
		libraries = append(libraries, path.Clean(file))
	}
	return libraries, nil
}
