package components

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func testCache(t *testing.T) cache {
	return cache{dir: filepath.Join(t.TempDir(), "cache"), progress: t.Logf}
}

// folders lists what is in the cache besides its lock.
func folders(t *testing.T, c cache) []string {
	t.Helper()
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		t.Fatal(err)
	}
	names := []string{}
	for _, e := range entries {
		if e.Name() != "lock" {
			names = append(names, e.Name())
		}
	}
	return names
}

// writes returns a build that writes content and counts its runs.
func writes(content string, runs *int) func(string) error {
	return func(path string) error {
		*runs++
		return os.WriteFile(path, []byte(content), 0o755)
	}
}

func TestCacheMakesOnce(t *testing.T) {
	c := testCache(t)
	var runs int
	var paths []string
	for range 2 {
		path, err := c.get(t.Context(), "tool", newKey("a"), writes("hello", &runs))
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	if runs != 1 || paths[0] != paths[1] {
		t.Errorf("made %d times, into %v", runs, paths)
	}
	if want := filepath.Join(c.dir, "tool-"+newKey("a").String(), "tool"); paths[0] != want {
		t.Errorf("path = %s, want %s", paths[0], want)
	}
	content, err := os.ReadFile(paths[0])
	if err != nil {
		t.Fatal(err)
	}
	if string(content) != "hello" {
		t.Errorf("content = %q", content)
	}
	other, err := c.get(t.Context(), "tool", newKey("b"), writes("hello", &runs))
	if err != nil {
		t.Fatal(err)
	}
	if runs != 2 || other == paths[0] {
		t.Errorf("another key: made %d times, into %s", runs, other)
	}
}

func TestKeysDistinguishParts(t *testing.T) {
	keys := map[string][]string{}
	for _, parts := range [][]string{{}, {""}, {"", ""}, {"ab"}, {"a", "b"}, {"b", "a"}, {"1 a"}, {"a1 b"}} {
		k := newKey(parts...).String()
		if same, ok := keys[k]; ok {
			t.Errorf("%q and %q have one key", same, parts)
		}
		keys[k] = parts
	}
	if newKey("a").add("b").String() == newKey("a", "b").String() {
		t.Error("two lists have the key of their union")
	}
}

func TestFailedBuildLeavesNothing(t *testing.T) {
	c := testCache(t)
	boom := errors.New("boom")
	_, err := c.get(t.Context(), "tool", newKey("a"), func(path string) error {
		if err := os.WriteFile(path, []byte("half"), 0o755); err != nil {
			t.Fatal(err)
		}
		return boom
	})
	if !errors.Is(err, boom) {
		t.Errorf("error = %v, want the build's", err)
	}
	if diff := cmp.Diff([]string{}, folders(t, c)); diff != "" {
		t.Errorf("left behind (-want +got):\n%s", diff)
	}
}

func TestBuildThatWritesNothingFails(t *testing.T) {
	c := testCache(t)
	if _, err := c.get(t.Context(), "tool", newKey("a"), func(string) error { return nil }); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("error = %v, want one about the missing file", err)
	}
	if diff := cmp.Diff([]string{}, folders(t, c)); diff != "" {
		t.Errorf("left behind (-want +got):\n%s", diff)
	}
}

func TestCacheFolderCannotBeMade(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c := cache{dir: filepath.Join(file, "cache"), progress: t.Logf}
	var runs int
	if _, err := c.get(t.Context(), "tool", newKey("a"), writes("", &runs)); !errors.Is(err, syscall.ENOTDIR) || runs != 0 {
		t.Errorf("error = %v after %d builds", err, runs)
	}
}

func TestSimultaneousBuildsMakeOnce(t *testing.T) {
	c := testCache(t)
	var runs int // without a lock of its own: the cache's must do, and the race detector watches
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if _, err := c.get(t.Context(), "tool", newKey("a"), writes("hello", &runs)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if runs != 1 {
		t.Errorf("made %d times", runs)
	}
}

func TestWaitForLockEndsWithContext(t *testing.T) {
	c := testCache(t)
	waiting := make(chan struct{})
	c.progress = func(string, ...any) { close(waiting) }
	if err := os.Mkdir(c.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	unlock, err := c.lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ended := errors.New("the caller has ended")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		<-waiting
		cancel(ended)
	}()
	var runs int
	if _, err := c.get(ctx, "tool", newKey("a"), writes("", &runs)); !errors.Is(err, ended) || runs != 0 {
		t.Errorf("error = %v after %d builds, want the caller's reason after none", err, runs)
	}
}

func TestPrune(t *testing.T) {
	old := time.Now().Add(-unusedTime - time.Hour)
	recent := time.Now().Add(-unusedTime + time.Hour)
	tests := []struct {
		folder, file string
		used         time.Time
		want         bool // remains
	}{
		{"tool-0123456789abcdef", "tool", old, false},
		{"tool-name-0123456789abcdee", "tool-name", old, false},
		{"tool-0123456789abcded", "tool", recent, true},
		{"tool-0123456789abcdec", "another", old, true},
		{"tool-0123456789abcdeg", "tool", old, true},
		{"tool-0123", "tool", old, true},
		{"-0123456789abcdef", "x", old, true},
		{"logs", "tool.log", old, true},
		{unfinished + "tool-17", "tool", recent, false},
	}
	c := testCache(t)
	want := []string{}
	for _, test := range tests {
		folder := filepath.Join(c.dir, test.folder)
		if err := os.MkdirAll(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, test.file), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(folder, test.used, test.used); err != nil {
			t.Fatal(err)
		}
		if test.want {
			want = append(want, test.folder)
		}
	}
	if err := c.prune(); err != nil {
		t.Fatal(err)
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, folders(t, c)); diff != "" {
		t.Errorf("remaining (-want +got):\n%s", diff)
	}
}

func TestUsedFolderIsNotPruned(t *testing.T) {
	c := testCache(t)
	var runs int
	get := func(k string) string {
		t.Helper()
		path, err := c.get(t.Context(), "tool", newKey(k), writes("", &runs))
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	old := time.Now().Add(-2 * unusedTime)
	used, unused := get("used"), get("unused")
	for _, path := range []string{used, unused} {
		if err := os.Chtimes(filepath.Dir(path), old, old); err != nil {
			t.Fatal(err)
		}
	}
	get("used")
	get("new")
	if _, err := os.Stat(used); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(unused); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the unused file: got %v, want it deleted", err)
	}
	if left := strings.Join(folders(t, c), " "); runs != 3 || strings.Contains(left, unfinished) {
		t.Errorf("made %d files, left %s", runs, left)
	}
}
