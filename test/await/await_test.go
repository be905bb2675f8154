package await

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// failed is a test that fails, and why.
type failed struct {
	testing.TB
	why string
}

func (f *failed) Fatalf(format string, args ...any) {
	f.why = fmt.Sprintf(format, args...)
	panic(f)
}

func TestOKWaitsForTheFaultToGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		OK(t, time.Minute, func(context.Context) error {
			if time.Since(start) < time.Second {
				return errors.New("too early")
			}
			return nil
		})
		if took := time.Since(start); took < time.Second || took > time.Second+interval {
			t.Errorf("took %v", took)
		}
	})
}

func TestOKFailsWithTheLastFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, looks := &failed{TB: t}, 0
		defer func() {
			if recover() != any(f) || f.why != fmt.Sprintf("not within 990ms: fault %d", looks) {
				t.Errorf("got %q after %d looks", f.why, looks)
			}
		}()
		OK(f, 990*time.Millisecond, func(ctx context.Context) error { // ends between two looks
			if ctx.Err() != nil {
				t.Error("looked after the end")
			}
			looks++
			return fmt.Errorf("fault %d", looks)
		})
	})
}

func TestOKSaysWhatWasWrongBeforeTheTimeWasOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, asked := &failed{TB: t}, false
		defer func() {
			if recover() != any(f) || f.why != "not within 50ms: the failure" {
				t.Errorf("got %q", f.why)
			}
		}()
		OK(f, 50*time.Millisecond, func(ctx context.Context) error {
			if !asked {
				asked = true
				return errors.New("the failure")
			}
			<-ctx.Done() // as a call of an API server that hangs
			return ctx.Err()
		})
	})
}

func TestAcceptEndsWithTheContext(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if conn, err := Accept(ctx, l); conn != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, %v, want the error of the context", conn, err)
	}
}

func TestAccept(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("tcp4", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server, err := Accept(t.Context(), l)
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	if server.RemoteAddr().String() != client.LocalAddr().String() {
		t.Errorf("got a connection of %s, want that of %s", server.RemoteAddr(), client.LocalAddr())
	}
}
