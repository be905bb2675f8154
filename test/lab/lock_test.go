package lab

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// reports returns a progress function that sends each message to the channel.
func reports() (func(string, ...any), <-chan string) {
	messages := make(chan string, 16)
	return func(format string, args ...any) { messages <- fmt.Sprintf(format, args...) }, messages
}

func TestLockStartWaitsForAnotherStart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	progress, messages := reports()
	first, err := lockStart(t.Context(), path, "one", progress)
	if err != nil {
		t.Fatal(err)
	}
	second := make(chan error, 1)
	go func() {
		f, err := lockStart(t.Context(), path, "two", progress)
		if err == nil {
			err = f.Close()
		}
		second <- err
	}()
	if got, want := <-messages, "waiting for the start of lab one"; got != want {
		t.Errorf("progress is %q, want %q", got, want)
	}
	select {
	case err := <-second:
		t.Errorf("the second lab starts beside the first: %v", err)
	default:
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-second; err != nil {
		t.Errorf("the second lab: %v", err)
	}
	if got, want := starting(path), "lab two"; got != want {
		t.Errorf("the last start is of %q, want %q", got, want)
	}
}

func TestLockStartEndsWithContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	first, err := lockStart(t.Context(), path, "one", t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	interrupted := errors.New("interrupted")
	_, err = lockStart(ctx, path, "two", func(string, ...any) { cancel(interrupted) })
	if !errors.Is(err, interrupted) || !strings.Contains(fmt.Sprint(err), "waiting for the start of lab one") {
		t.Errorf("got %v, want that it is interrupted while it waits for lab one", err)
	}
}

func TestAcquireWaitsForAnotherChange(t *testing.T) {
	dir := t.TempDir()
	first, err := acquire(t.Context(), dir, t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	second, err := acquire(t.Context(), dir, func(string, ...any) {
		if err := first.Close(); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
}
