package cniserver

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/pkg/version"
)

func TestListen(t *testing.T) {
	dir := filepath.Join(shortDir(t), "run")
	socket := filepath.Join(dir, "cni.sock")
	l, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]os.FileMode{dir: os.ModeDir | 0o700, socket: os.ModeSocket | 0o600} {
		if st, err := os.Stat(path); err != nil || st.Mode() != want {
			t.Errorf("mode of %s: got %v, want %v (%v)", path, st.Mode(), want, err)
		}
	}
	if _, err := Listen(socket); !IsInUse(err) || !strings.Contains(err.Error(), version.Get().String()) {
		t.Errorf("second agent: got %v, want InUseError", err)
	}
	conn, err := net.Dial("unix", socket) // the second agent did no harm
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	for range 2 {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(socket); !os.IsNotExist(err) {
		t.Errorf("socket after Close: got %v, want that it does not exist", err)
	}
}

func TestListen_staleSocket(t *testing.T) {
	socket := filepath.Join(shortDir(t), "cni.sock")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
	if _, err := net.Dial("unix", socket); err == nil {
		t.Fatal("the socket is not stale")
	}
	l, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
}

func TestListen_invalid(t *testing.T) {
	public := filepath.Join(shortDir(t), "public")
	if err := os.Mkdir(public, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(public, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(shortDir(t), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		filepath.Join(public, "s"):           "can be changed by others",
		"/" + strings.Repeat("x", 107):       "longer than the 107 bytes",
		filepath.Join(file, "s"):             unix.ENOTDIR.Error(),
		filepath.Join(shortDir(t), "no\x00"): unix.EINVAL.Error(),
	} {
		l, err := Listen(path)
		if err == nil {
			l.Close()
			t.Errorf("Listen of %q: got no error", path)
			continue
		}
		if !strings.Contains(err.Error(), want) {
			t.Errorf("Listen of %q: got %v, want %q in it", path, err, want)
		}
	}
}
