// Package podcapture captures packets of a pod's interface at its host veth (docs/decisions/0020-diagnostics.md). It opens a packet socket in the host's
// network namespace, and changes neither the interface nor its flows.
package podcapture

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/pkg/pcapng"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
)

// Capture describes a capture.
type Capture struct {
	HostVeth string
	Name     string                  // of the interface in the file
	Spec     diagnostics.CaptureSpec // complete
}

// Output receives the file.
type Output interface {
	io.Writer
	// Flush sends what was written.
	Flush() error
}

const (
	// heartbeat is the interval of counters in the file: proxies close connections without traffic, and a reader that has disconnected is noticed.
	heartbeat = 10 * time.Second
	// reserved is the part of the byte limit for the counters at the end of the file.
	reserved = 1 << 10

	bufferSize = 64 << 10
)

// Session is a capture whose socket is open.
type Session struct {
	capture Capture
	socket  *socket

	writer *pcapng.Writer
	counts pcapng.Statistics
}

// Open opens the socket of a capture, which from then on receives packets. The caller closes the session.
func Open(c Capture) (*Session, error) {
	s, err := open(c.HostVeth, &c.Spec)
	if err != nil {
		return nil, err
	}
	return &Session{capture: c, socket: s}, nil
}

// Close ends the capture.
func (s *Session) Close() error { return s.socket.file.Close() }

// Run writes the file until the capture ends. If it returns nil, the last block has the cause. An error is one of the output or of the context: then the file has
// no end.
func (s *Session) Run(ctx context.Context, out Output) error {
	stop := context.AfterFunc(ctx, s.socket.interrupt)
	defer stop()
	began := time.Now()
	s.counts.Start = began
	buffered := bufio.NewWriterSize(out, bufferSize)
	flush := func() error {
		if err := buffered.Flush(); err != nil {
			return err
		}
		return out.Flush()
	}
	var err error
	if s.writer, err = pcapng.NewWriter(buffered, s.description()); err != nil {
		return err
	}
	if err := flush(); err != nil { // the reader knows that the capture runs
		return err
	}
	until := began.Add(time.Duration(s.capture.Spec.DurationSeconds) * time.Second)
	for {
		end, reason, err := s.writeUntil(ctx, minTime(until, time.Now().Add(heartbeat)), flush)
		if err != nil {
			return err
		}
		if end == "" && !time.Now().Before(until) {
			end, reason = diagnostics.CaptureEndDuration, fmt.Sprintf("the capture has lasted %v", until.Sub(began))
		}
		comment := ""
		if end != "" {
			comment = end.Comment(reason)
		}
		if err := s.writeCounts(comment); err != nil {
			return err
		}
		if err := flush(); err != nil || end != "" {
			return err
		}
	}
}

func (s *Session) description() pcapng.Interface {
	return pcapng.Interface{
		Application: "ovsdn-node", Name: s.capture.Name, Filter: s.capture.Spec.Filter(), SnapLength: uint32(s.capture.Spec.SnapLength), //nolint:gosec // it is positive
	}
}

// writeUntil writes packets until the time, and flushes when none waits. The end is "" if the capture continues.
func (s *Session) writeUntil(ctx context.Context, until time.Time, flush func() error) (end diagnostics.CaptureEnd, reason string, err error) {
	s.socket.setDeadline(until)
	spec := &s.capture.Spec
	isDown := false
	for wait := false; ; {
		if ctx.Err() != nil { // after setDeadline, which may have replaced that of interrupt
			return "", "", ctx.Err()
		}
		p, err := s.socket.receive(wait)
		switch {
		case errors.Is(err, unix.EAGAIN) && isDown:
			return diagnostics.CaptureEndInterface, "the interface of the pod was removed or set down", nil
		case errors.Is(err, unix.EAGAIN):
			if err := flush(); err != nil {
				return "", "", err
			}
			wait = true
			continue
		case errors.Is(err, os.ErrDeadlineExceeded):
			return "", "", ctx.Err()
		case errors.Is(err, unix.ENETDOWN): // reported once, before packets that wait
			isDown, wait = true, false
			continue
		case err != nil:
			return diagnostics.CaptureEndFailed, fmt.Sprintf("the kernel reports: %v", err), nil
		}
		wait = false
		if s.writer.Written()+pcapng.PacketSize(len(p.Data))+reserved > int64(spec.MaxBytes) {
			return diagnostics.CaptureEndBytes, fmt.Sprintf("the file has no room for another packet in %d bytes", spec.MaxBytes), nil
		}
		if err := s.writer.WritePacket(p); err != nil {
			return "", "", err
		}
		if s.counts.Delivered++; s.counts.Delivered == uint64(spec.MaxPackets) { //nolint:gosec // it is not negative
			return diagnostics.CaptureEndPackets, fmt.Sprintf("the file has %d packets", spec.MaxPackets), nil
		}
	}
}

// writeCounts writes the counters. Those without a comment leave out the ones that do not fit in the byte limit.
func (s *Session) writeCounts(comment string) error {
	accepted, dropped, err := s.socket.counts()
	if err != nil {
		return err
	}
	s.counts.Received += accepted
	s.counts.Dropped += dropped
	if comment == "" && s.writer.Written()+2*reserved > int64(s.capture.Spec.MaxBytes) {
		return nil
	}
	s.counts.Time, s.counts.Comment = time.Now(), comment
	return s.writer.WriteStatistics(s.counts)
}

func minTime(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
