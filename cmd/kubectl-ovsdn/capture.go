package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes"

	"github.com/ovsdn/ovsdn/pkg/pcapng"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
)

// capturer requests the packets of a pod.
type capturer struct {
	genericiooptions.IOStreams
	kube kubernetes.Interface

	pod      diagnostics.Object
	spec     diagnostics.CaptureSpec
	file     string // "" or "-": standard output
	duration time.Duration
	maxBytes string
}

func captureCommand(flags *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	c := &capturer{IOStreams: streams}
	cmd := &cobra.Command{
		Use:   "capture POD",
		Short: "Capture the packets of a pod to a pcapng file",
		Long: "Capture the packets of a pod at its interface to a pcapng file, for Wireshark or tcpdump -r. POD is pod/NAMESPACE/NAME. Nothing runs in the pod, and its\n" +
			"packets are not changed. You need the right to create captures/attach of diagnostics.ovsdn.io in its namespace. The capture ends by time, size or number\n" +
			"of packets, or when this command is interrupted. The exit code is 0 if a limit ended it, else 1: then the file has what was received.",
		Example: "  kubectl ovsdn capture pod/shop/web -w web.pcapng\n  kubectl ovsdn capture pod/shop/web --protocol tcp --port 5432 --host 10.129.0.7 --count 100 -w db.pcapng\n\n" +
			"  # watch in Wireshark\n  kubectl ovsdn capture pod/shop/web --duration 5m | wireshark -k -i -",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return completeObject(cmd.Context(), flags, begin, diagnostics.KindPod)
		},
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if err := c.parse(flags, args); err != nil {
				return err
			}
			if c.kube, _, err = clients(flags); err != nil {
				return err
			}
			return c.run(cmd.Context())
		},
	}
	cmd.Flags().StringVarP(&c.file, "write", "w", "", "`file` to create, or - for standard output; by default standard output, unless it is a terminal")
	cmd.Flags().DurationVar(&c.duration, "duration", diagnostics.DefaultCaptureSeconds*time.Second, fmt.Sprintf("`time` after which the capture ends, in seconds, at most %v", diagnostics.MaxCaptureSeconds*time.Second))
	cmd.Flags().StringVar(&c.maxBytes, "max-bytes", "16Mi", "`size` of the file at which the capture ends, at most 256Mi")
	cmd.Flags().Int32Var(&c.spec.MaxPackets, "count", 0, "`number` of packets after which the capture ends; 0: no limit")
	cmd.Flags().Int32Var(&c.spec.SnapLength, "snap-length", diagnostics.DefaultSnapLength, fmt.Sprintf("`bytes` of each packet, from %d to %d", diagnostics.MinSnapLength, diagnostics.MaxSnapLength))
	cmd.Flags().StringVar(&c.spec.Protocol, "protocol", "", "only packets of this `protocol` of IPv4: "+strings.ToLower(strings.Join(diagnostics.CaptureProtocols(), ", ")))
	cmd.Flags().Int32Var(&c.spec.Port, "port", 0, "only packets from or to this TCP, UDP or SCTP `port`")
	cmd.Flags().StringVar(&c.spec.Host, "host", "", "only packets from or to this IPv4 `address` or prefix such as 10.128.0.0/14")
	return cmd
}

func (c *capturer) parse(flags *genericclioptions.ConfigFlags, args []string) error {
	if len(args) != 1 {
		return usagef("specify one pod, such as pod/NAMESPACE/NAME")
	}
	text, _, err := qualify(flags, args[0], diagnostics.KindPod)
	if err != nil {
		return err
	}
	if c.pod, err = diagnostics.ParseObject(text); err != nil {
		return usageError{err}
	}
	if c.duration < time.Second || c.duration > diagnostics.MaxCaptureSeconds*time.Second || c.duration%time.Second != 0 {
		return usagef("--duration: %v must be whole seconds from 1s to %v", c.duration, diagnostics.MaxCaptureSeconds*time.Second)
	}
	c.spec.DurationSeconds = int32(c.duration / time.Second) //nolint:gosec // in the range
	size, err := resource.ParseQuantity(c.maxBytes)
	if n := size.Value(); err != nil || n < diagnostics.MinCaptureBytes || n > diagnostics.MaxCaptureBytes {
		return usagef("--max-bytes: %s must be a size from 4Ki to 256Mi", c.maxBytes)
	}
	c.spec.MaxBytes = int32(min(size.Value(), math.MaxInt32)) //nolint:gosec // in the range
	c.spec.Protocol = strings.ToUpper(c.spec.Protocol)
	if errs := c.spec.Complete(); len(errs) > 0 {
		for _, err := range errs {
			err.Field = captureFlag(err.Field)
		}
		return usageError{errs.ToAggregate()}
	}
	if out, isFile := c.Out.(*os.File); (c.file == "" || c.file == "-") && isFile && term.IsTerminal(int(out.Fd())) { //nolint:gosec // a file descriptor
		return usagef("a capture is a binary file; name a file with -w FILE, or pipe it to a program such as tcpdump -r -")
	}
	return nil
}

// captureFlag returns the flag of a field of the spec.
func captureFlag(field string) string {
	switch name := strings.TrimPrefix(field, "spec."); name {
	case "durationSeconds":
		return "--duration"
	case "maxBytes":
		return "--max-bytes"
	case "maxPackets":
		return "--count"
	case "snapLength":
		return "--snap-length"
	default:
		return "--" + name
	}
}

// run captures to the file.
func (c *capturer) run(ctx context.Context) (err error) {
	out := c.Out
	if c.file != "" && c.file != "-" {
		f, err := os.OpenFile(c.file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("%s exists; name another file with -w", c.file)
		}
		if err != nil {
			return err
		}
		out = f
		defer func() {
			if closeErr := f.Close(); err == nil && closeErr != nil {
				err = closeErr
			}
			if info, statErr := os.Stat(c.file); statErr == nil && info.Size() == 0 {
				_ = os.Remove(c.file) // the capture did not begin
			}
		}()
	}
	body, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer body.Close()
	s := &savedFile{out: out}
	err = s.copy(body)
	return c.report(ctx, s, err)
}

// open requests the file.
func (c *capturer) open(ctx context.Context) (io.ReadCloser, error) {
	content, err := json.Marshal(diagnostics.Capture{TypeMeta: diagnosticsType("Capture"), Spec: c.spec})
	if err != nil {
		return nil, err
	}
	// Not the client of discovery, whose requests end after 32 seconds.
	path := diagnosticsPath + "/namespaces/" + c.pod.Namespace + "/captures/" + c.pod.Name + "/" + diagnostics.CaptureSubresource
	body, err := c.kube.CoreV1().RESTClient().Post().AbsPath(path).SetHeader("Content-Type", "application/json").SetHeader("Accept", diagnostics.ContentTypePcapng+", application/json").Body(content).Stream(ctx)
	if err != nil {
		return nil, explainAPIError(err)
	}
	return body, nil
}

// report writes why the capture ended. What does not end by a limit fails.
func (c *capturer) report(ctx context.Context, s *savedFile, err error) error {
	count := fmt.Sprintf("%d packets of %s", s.packets, c.pod)
	if s.packets == 1 {
		count = fmt.Sprintf("1 packet of %s", c.pod)
	}
	if s.dropped > 0 {
		count += fmt.Sprintf("; %d more were dropped because they were read too slowly: use a filter, or a smaller --snap-length", s.dropped)
	}
	switch {
	case s.end != "" && err == nil:
		fmt.Fprintf(c.ErrOut, "Captured %s: %s: %s\n", count, s.end, printableText(s.reason))
		if s.end.IsComplete() {
			return nil
		}
		return errReported
	case ctx.Err() != nil:
		fmt.Fprintf(c.ErrOut, "Captured %s: interrupted\n", count)
		return errReported
	case err == nil:
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("the capture ended early, after %s, which were written: %w; the log of ovsdn-controller has the cause", count, err)
}

// printableText returns text of an agent. One with characters that a terminal could interpret is quoted.
func printableText(text string) string {
	if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }) {
		return strconv.Quote(text)
	}
	return text
}

// savedFile is the part of a capture that was received and written.
type savedFile struct {
	out     io.Writer
	packets int
	dropped uint64
	end     diagnostics.CaptureEnd // "": not yet
	reason  string
}

// copy writes whole blocks: a file that breaks off can be read. The error is nil at the end of the content.
func (s *savedFile) copy(body io.Reader) error {
	for reader := pcapng.NewReader(body); ; {
		block, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if _, err := s.out.Write(block.Raw); err != nil {
			return err
		}
		switch {
		case block.Packet != nil:
			s.packets++
			s.end = "" // an end is the last block
		case block.Statistics != nil:
			s.dropped = block.Statistics.Dropped
			s.end, s.reason = "", ""
			if end, reason, ok := diagnostics.ParseCaptureEnd(block.Statistics.Comment); ok {
				s.end, s.reason = end, reason
			}
		}
	}
}
