package native

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// vswitchd has some commands on its control socket only, the one that `ovs-appctl` uses. The protocol is JSON-RPC 1.0; the only result is
// the text that ovs-appctl prints. It may have hundreds of megabytes, and is therefore read line by line.

// maxLine is the maximum length of a line in bytes. A connection has less than 1,000.
const maxLine = 64 << 10

// command runs a command of vswitchd and calls each for every line of its output. The line is valid only during the call.
func (n *Native) command(ctx context.Context, each func(line []byte), method string, args ...string) error {
	refused, err := n.commands(ctx, method, [][]string{args}, func(_ int, line []byte) { each(line) })
	if err != nil {
		return err
	}
	return refused[0]
}

// commands runs a command of vswitchd several times, with the arguments of each call, and calls each for every line of the outputs, one call after the other. It returns
// the errors by which vswitchd refused calls. All requests are written before the first reply is read: they must fit into the buffer of vswitchd's socket.
func (n *Native) commands(ctx context.Context, method string, calls [][]string, each func(call int, line []byte)) (refused []error, err error) {
	conn, err := n.dialControl(ctx)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	var requests []byte
	for i, args := range calls {
		request, err := json.Marshal(map[string]any{"id": i, "method": method, "params": append([]string{}, args...)}) // an empty list must be encoded as [], not null
		if err != nil {
			return nil, err
		}
		requests = append(requests, request...)
	}
	if _, err := conn.Write(requests); err != nil {
		return nil, ovs.NewUnavailable(err)
	}
	r := replyReader{Reader: bufio.NewReaderSize(conn, chunk)}
	refused = make([]error, len(calls))
	for i := range calls {
		err := r.read(func(line []byte) { each(i, line) })
		var reason *commandError
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.As(err, &reason):
			refused[i] = fmt.Errorf("%s: %w", method, err)
		case err != nil:
			return nil, ovs.NewUnavailable(fmt.Errorf("%s: %w", method, err))
		}
	}
	return refused, nil
}

// print runs a command with a short output.
func (n *Native) print(ctx context.Context, method string, args ...string) (string, error) {
	var text []string
	err := n.command(ctx, func(line []byte) { text = append(text, string(line)) }, method, args...)
	return strings.Join(text, "\n"), err
}

// dialControl connects to the socket, whose name contains the process ID of vswitchd (ovs-vswitchd(8), --unixctl).
func (n *Native) dialControl(ctx context.Context) (net.Conn, error) {
	text, err := os.ReadFile(filepath.Join(n.runDir, "ovs-vswitchd.pid"))
	if err != nil {
		return nil, ovs.NewUnavailable(fmt.Errorf("find vswitchd's control socket: %w", err))
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return nil, ovs.NewUnavailable(fmt.Errorf("find vswitchd's control socket: ovs-vswitchd.pid has no process ID: %w", err))
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", filepath.Join(n.runDir, fmt.Sprintf("ovs-vswitchd.%d.ctl", pid)))
	if err != nil {
		return nil, ovs.NewUnavailable(fmt.Errorf("connect to vswitchd's control socket: %w", err))
	}
	return conn, nil
}

// commandError is the error of a command of vswitchd.
type commandError struct{ reason string }

func (e *commandError) Error() string { return "vswitchd: " + e.reason }

// replyReader reads replies to commands, {"id":0,"result":"…","error":null}, whose members may be in any order.
type replyReader struct {
	*bufio.Reader
	line []byte
}

var errNoReply = errors.New("invalid reply to a command")

// read reads one reply. A *commandError is that of a whole one.
func (r *replyReader) read(each func(line []byte)) error {
	if err := r.expect('{'); err != nil {
		return err
	}
	var refused error
	answered := false
	for {
		name, err := r.word()
		if err != nil {
			return err
		}
		if err := r.expect(':'); err != nil {
			return err
		}
		isText, err := r.isText()
		if err != nil {
			return err
		}
		switch {
		case !isText:
			err = r.skipWord()
		case name == "error":
			var reason []string
			err = r.text(func(line []byte) { reason = append(reason, string(line)) })
			refused = &commandError{strings.Join(reason, "; ")}
		case name == "result":
			answered = true
			err = r.text(each)
		default:
			err = r.text(func([]byte) {})
		}
		if err != nil {
			return err
		}
		switch next, err := r.token(); {
		case err != nil:
			return err
		case next == '}' && (answered || refused != nil):
			return refused
		case next != ',':
			return errNoReply
		}
	}
}

// token returns the next byte that is not white space.
func (r *replyReader) token() (byte, error) {
	for {
		b, err := r.ReadByte()
		if err != nil {
			return 0, noEOF(err)
		}
		if b != ' ' && b != '\n' && b != '\t' && b != '\r' {
			return b, nil
		}
	}
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func (r *replyReader) expect(want byte) error {
	if b, err := r.token(); err != nil {
		return err
	} else if b != want {
		return errNoReply
	}
	return nil
}

// isText reports whether a string comes next.
func (r *replyReader) isText() (bool, error) {
	b, err := r.token()
	if err != nil {
		return false, err
	}
	return b == '"', r.UnreadByte()
}

// skipWord skips a number, null, true or false.
func (r *replyReader) skipWord() error {
	for {
		b, err := r.ReadByte()
		switch {
		case err != nil:
			return noEOF(err)
		case b == ',' || b == '}':
			return r.UnreadByte()
		case b == '{' || b == '[':
			return errNoReply
		}
	}
}

// word reads the name of a member.
func (r *replyReader) word() (word string, err error) {
	err = r.text(func(line []byte) { word += string(line) })
	return word, err
}

// text reads a string and calls each for its lines. The last line may lack a line break.
func (r *replyReader) text(each func(line []byte)) error {
	if err := r.expect('"'); err != nil {
		return err
	}
	r.line = r.line[:0]
	for {
		if _, err := r.Peek(1); err != nil {
			return noEOF(err)
		}
		plain, _ := r.Peek(r.Buffered())
		if i := bytes.IndexAny(plain, `"\`); i >= 0 {
			plain = plain[:i]
		}
		r.line = append(r.line, plain...)
		if len(r.line) > maxLine {
			return errNoReply
		}
		if _, err := r.Discard(len(plain)); err != nil {
			return err
		}
		if r.Buffered() == 0 {
			continue
		}
		b, err := r.ReadByte()
		if err != nil {
			return noEOF(err)
		}
		if b == '"' {
			if len(r.line) > 0 {
				each(r.line)
			}
			return nil
		}
		c, err := r.escaped()
		switch {
		case err != nil:
			return err
		case c == '\n':
			each(r.line)
			r.line = r.line[:0]
		default:
			r.line = append(r.line, string(c)...)
		}
	}
}

// escaped reads the rest of an escape sequence (RFC 8259, 7). vswitchd does not escape characters beyond the Basic Multilingual Plane.
func (r *replyReader) escaped() (rune, error) {
	b, err := r.ReadByte()
	if err != nil {
		return 0, noEOF(err)
	}
	switch b {
	case '"', '\\', '/':
		return rune(b), nil
	case 'b':
		return '\b', nil
	case 'f':
		return '\f', nil
	case 'n':
		return '\n', nil
	case 'r':
		return '\r', nil
	case 't':
		return '\t', nil
	case 'u':
		var digits [4]byte
		if _, err := io.ReadFull(r, digits[:]); err != nil {
			return 0, noEOF(err)
		}
		n, err := strconv.ParseUint(string(digits[:]), 16, 16)
		return rune(n), err
	}
	return 0, errNoReply
}
