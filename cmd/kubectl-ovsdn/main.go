// Command kubectl-ovsdn is a kubectl plugin: `kubectl ovsdn`. It does what `oc adm pod-network` does, in clusters without
// OpenShift's Projects, shows and sets egress IPs, idles services, shows the state, the flows and
// the dropped packets of nodes, and the traffic of pods, follows packets over
// nodes, probes and captures at pods, compares policies with flows, serves a
// dashboard, and writes support bundles.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/ovsdn/ovsdn/pkg/version"
)

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1 // a change failed, a node has a problem, a packet is not delivered or not answered, flows differ from policies, or a capture ended early
	exitUsage  = 2 // the command line is invalid
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	code := run(ctx, os.Args[1:], genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr})
	stop()
	os.Exit(code)
}

// usageError is an error in the command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

func run(ctx context.Context, args []string, streams genericiooptions.IOStreams) int {
	cmd := command(streams)
	cmd.SetArgs(args)
	cmd.SetOut(streams.Out)
	cmd.SetErr(streams.ErrOut)
	called, err := cmd.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	if errors.Is(err, errReported) {
		return exitFailed
	}
	fmt.Fprintf(streams.ErrOut, "error: %v\n", err)
	if _, ok := errors.AsType[usageError](err); ok {
		fmt.Fprintf(streams.ErrOut, "See '%s --help' for usage.\n", called.CommandPath())
		return exitUsage
	}
	return exitFailed
}

func command(streams genericiooptions.IOStreams) *cobra.Command {
	flags := genericclioptions.NewConfigFlags(true)
	cmd := &cobra.Command{
		Use:   "kubectl-ovsdn",
		Short: "Show and change the pod network of ovsdn",
		Annotations: map[string]string{
			cobra.CommandDisplayNameAnnotation: "kubectl ovsdn",
		},
		Version:       version.Get().String(),
		SilenceUsage:  true,
		SilenceErrors: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("unknown command %q", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	flags.AddFlags(cmd.PersistentFlags())
	cmd.AddCommand(
		joinCommand(flags, streams),
		isolateCommand(flags, streams),
		globalCommand(flags, streams),
		vnidsCommand(flags, streams),
		egressIPsCommand(flags, streams),
		idleCommand(flags, streams),
		statusCommand(flags, streams),
		flowsCommand(flags, streams),
		traceCommand(flags, streams),
		probeCommand(flags, streams),
		verifyCommand(flags, streams),
		captureCommand(flags, streams),
		dropsCommand(flags, streams),
		topCommand(flags, streams),
		dashboardCommand(flags, streams),
		supportBundleCommand(flags, streams),
	)
	return cmd
}
