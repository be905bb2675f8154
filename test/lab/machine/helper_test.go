package machine

import (
	"net"
	"os"
	"slices"
	"testing"
	"time"
)

// TestHelperListen is the program of TestSocketMakesReady: it waits for the first file and then listens on the second.
func TestHelperListen(t *testing.T) {
	at := slices.Index(os.Args, "--")
	if at < 0 {
		return
	}
	release, socket := os.Args[at+1], os.Args[at+2]
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for !exists(release) {
		<-ticker.C
	}
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	for {
		conn, err := listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		conn.Close()
	}
}
