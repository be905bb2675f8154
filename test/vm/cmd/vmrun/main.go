// Command vmrun runs a command as root on a Debian kernel with Open vSwitch, in a virtual machine with this machine's root file
// system. It prints what the command prints and ends with its exit code; with 124 when time was up, and with 125 when
// there was no machine to run it.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/ovsdn/ovsdn/test/vm"
)

// As timeout(1) has it.
const (
	exitTimeout = 124
	exitFailed  = 125
)

func main() {
	os.Exit(run()) //nolint:forbidigo // this is main
}

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	o := vm.Options{Output: os.Stdout}
	flags := pflag.NewFlagSet("vmrun", pflag.ContinueOnError)
	flags.SetInterspersed(false)
	flags.Usage = func() {
		fmt.Fprintf(os.Stderr, "usage: vmrun [flags] [--] COMMAND [ARGUMENT...]\n%s", flags.FlagUsages())
	}
	flags.StringVarP(&o.Dir, "dir", "C", "", "working `directory` of the command (default this one)")
	flags.StringArrayVarP(&o.Env, "env", "e", nil, "`KEY=VALUE` for the command's environment; may be repeated")
	flags.IntVarP(&o.MemoryMiB, "memory", "m", 0, "memory in `MiB` (default 2048)")
	flags.IntVarP(&o.CPUs, "cpus", "c", 0, "processors (default 2)")
	flags.DurationVarP(&o.Timeout, "timeout", "t", 0, "for the whole run (default 10m)")
	flags.StringVar(&o.CacheDir, "cache", vm.DefaultCacheDir, "`directory` of the kernels")
	if err := flags.Parse(os.Args[1:]); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return 0
		}
		fmt.Fprintln(os.Stderr, "vmrun:", err)
		return exitFailed
	}
	if o.Dir != "" {
		dir, err := filepath.Abs(o.Dir)
		if err != nil {
			fmt.Fprintln(os.Stderr, "vmrun:", err)
			return exitFailed
		}
		o.Dir = dir
	}
	code, err := vm.Run(ctx, o, flags.Args()...)
	if err == nil {
		return code
	}
	fmt.Fprintln(os.Stderr, "vmrun:", err)
	if errors.Is(err, vm.ErrTimeout) {
		return exitTimeout
	}
	return exitFailed
}
