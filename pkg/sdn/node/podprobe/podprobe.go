// Package podprobe sends one packet from the network namespace of a pod, and reports the answer (docs/decisions/0020-diagnostics.md). Only the socket is created
// in the namespace: it stays there for its whole life, no thread does. Nothing runs in the pod.
package podprobe

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/veth"
)

// Probe is one attempt to get an answer.
type Probe struct {
	Netns       string     // path of the pod's network namespace
	Source      netip.Addr // the pod's own address
	Destination netip.AddrPort
	Protocol    uint8         // IPPROTO_TCP, IPPROTO_UDP or IPPROTO_ICMP, which has no port
	Timeout     time.Duration // until the answer
}

// Send sends the probe, and waits for the answer. An error means that the namespace can't be used, or that the context has ended: then nothing was sent, or the
// answer is not known.
func Send(ctx context.Context, p Probe) (diagnostics.ProbeStatus, error) {
	pod, err := veth.Links{}.Open(p.Netns) // never the agent's own namespace
	if err != nil {
		return diagnostics.ProbeStatus{}, p.withoutPath(err)
	}
	defer pod.Close()
	file, err := p.open(pod)
	if err != nil {
		return diagnostics.ProbeStatus{}, p.withoutPath(err)
	}
	defer file.Close()
	began := time.Now()
	if err := file.SetDeadline(began.Add(p.Timeout)); err != nil {
		return diagnostics.ProbeStatus{}, fmt.Errorf("set deadline of a probe: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = file.SetDeadline(began) }) // fails if the file is closed
	defer stop()
	raw, err := file.SyscallConn()
	if err != nil {
		return diagnostics.ProbeStatus{}, err
	}
	err = p.attempt(raw)
	if ctx.Err() != nil {
		return diagnostics.ProbeStatus{}, ctx.Err()
	}
	return p.status(err, time.Since(began)), nil
}

// withoutPath returns the error without the path of the network namespace, which no user needs.
func (p Probe) withoutPath(err error) error {
	if p.Netns == "" {
		return err
	}
	return errors.New(strings.ReplaceAll(err.Error(), p.Netns, "its path"))
}

// attempt returns nil after an answer, a *sendError if nothing was sent, or the error that the kernel reports.
func (p Probe) attempt(raw syscall.RawConn) error {
	switch p.Protocol {
	case unix.IPPROTO_TCP:
		return p.connect(raw)
	case unix.IPPROTO_UDP:
		return p.exchange(raw, []byte("\n"), func([]byte) bool { return true })
	}
	request := newEcho()
	return p.exchange(raw, request, func(packet []byte) bool { return isReplyTo(packet, request) })
}

// sendError is the error of a packet that the kernel did not send, such as one without a route.
type sendError struct{ err error }

func (e *sendError) Error() string { return "send a probe: " + e.err.Error() }

func (e *sendError) Unwrap() error { return e.err }

// isUnreachable reports whether a router, or the pod's own kernel, reports the host or the network as unreachable.
func isUnreachable(err error) bool {
	return errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTDOWN)
}

// status returns the result as users read it. The sentences have no names and no addresses.
func (p Probe) status(err error, took time.Duration) diagnostics.ProbeStatus {
	answer := func(verdict diagnostics.Verdict, format string, args ...any) diagnostics.ProbeStatus {
		text := fmt.Sprintf(format, args...) + fmt.Sprintf(" after %.1f ms", float64(took)/float64(time.Millisecond))
		return diagnostics.ProbeStatus{Verdict: verdict, Reason: text, Duration: &metav1.Duration{Duration: took}, Reached: !isUnreachable(err)}
	}
	unreachable := map[error]string{
		unix.EHOSTUNREACH: "host unreachable (an ICMP error, or the next hop does not answer ARP)", unix.ENETUNREACH: "network unreachable (an ICMP error)", unix.EHOSTDOWN: "host unknown (an ICMP error)",
		unix.ENOPROTOOPT: "protocol unreachable (an ICMP error)", unix.ECONNRESET: "connection reset",
		unix.ECONNREFUSED: "port unreachable (an ICMP error)",
	}
	if p.Protocol == unix.IPPROTO_TCP {
		unreachable[unix.ECONNREFUSED] = "connection refused"
	}
	var number unix.Errno
	switch {
	case err == nil && p.Protocol == unix.IPPROTO_TCP:
		return answer(diagnostics.VerdictAnswered, "connected")
	case err == nil:
		return answer(diagnostics.VerdictAnswered, "answered")
	case errors.As(err, new(*sendError)):
		return diagnostics.ProbeStatus{Verdict: diagnostics.VerdictUnknown, Reason: fmt.Sprintf("the kernel does not send the packet from the pod: %v", errors.Unwrap(err))}
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, unix.ETIMEDOUT):
		reason := fmt.Sprintf("no answer within %v", p.Timeout)
		if p.Protocol == unix.IPPROTO_UDP {
			reason += "; a server that does not answer such a packet can't be distinguished from a dropped packet"
		}
		return diagnostics.ProbeStatus{Verdict: diagnostics.VerdictNoAnswer, Reason: reason}
	case errors.As(err, &number) && unreachable[number] != "":
		return answer(diagnostics.VerdictRefused, "%s", unreachable[number])
	}
	return diagnostics.ProbeStatus{Verdict: diagnostics.VerdictUnknown, Reason: fmt.Sprintf("the kernel reports: %v", err)}
}
