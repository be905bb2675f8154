package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"
)

// tb is a testing.TB outside of `go test`. It implements the methods that the helpers of tests call; any other panics.
type tb struct {
	testing.TB // only for its private method

	ctx    context.Context
	cancel context.CancelFunc
	name   string
	logf   func(format string, args ...any)

	mu       sync.Mutex
	errs     []error
	cleanups []func()
}

func newTB(ctx context.Context, name string, logf func(string, ...any)) *tb {
	t := &tb{name: name, logf: logf}
	t.ctx, t.cancel = context.WithCancel(ctx)
	return t
}

// do runs f, which may call Fatal, then what Cleanup was given, and returns all errors.
func (t *tb) do(f func()) error {
	t.protect(f)
	t.cancel()
	for {
		t.mu.Lock()
		todo := t.cleanups
		t.cleanups = nil
		t.mu.Unlock()
		if len(todo) == 0 {
			return errors.Join(t.errs...)
		}
		for _, c := range slices.Backward(todo) {
			t.protect(c)
		}
	}
}

// protect runs f in a goroutine that it may end.
func (t *tb) protect(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if p := recover(); p != nil {
				stack := make([]byte, 16<<10)
				t.fail(fmt.Errorf("panic: %v\n%s", p, stack[:runtime.Stack(stack, false)]))
			}
		}()
		f()
	}()
	<-done
}

func (t *tb) fail(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.errs = append(t.errs, err)
}

func (t *tb) Helper()                  {}
func (t *tb) Name() string             { return t.name }
func (t *tb) Context() context.Context { return t.ctx }

func (t *tb) Cleanup(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cleanups = append(t.cleanups, f)
}

func (t *tb) Failed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.errs) > 0
}

func (t *tb) Log(args ...any)                 { t.logf("%s", fmt.Sprint(args...)) }
func (t *tb) Logf(format string, args ...any) { t.logf(format, args...) }

func (t *tb) Error(args ...any)                 { t.fail(errors.New(fmt.Sprint(args...))) }
func (t *tb) Errorf(format string, args ...any) { t.fail(fmt.Errorf(format, args...)) }

func (t *tb) Fatal(args ...any) {
	t.Error(args...)
	runtime.Goexit()
}

func (t *tb) Fatalf(format string, args ...any) {
	t.Errorf(format, args...)
	runtime.Goexit()
}

// Skip fails: a figure that is missing must be seen.
func (t *tb) Skip(args ...any) { t.Fatal(args...) }

// TempDir has a short path, so that sockets fit.
func (t *tb) TempDir() string {
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}
