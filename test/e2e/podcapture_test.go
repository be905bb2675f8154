package e2e

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/pkg/pcapng"
	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
)

// seeCapture captures the pings of a pod to another one. The file has these packets in their order, and none of a connection between the two or of a ping to a node.
func seeCapture(t *testing.T, x *trio, namespace string, from, to pod) {
	t.Helper()
	const pings = 3
	file := filepath.Join(t.TempDir(), "capture.pcapng")
	ended := make(chan error, 1)
	go func() {
		ended <- x.kubectlOVSDN(t.Context(), nil, "capture", "pod/"+namespace+"/"+from.Name, "--protocol=icmp", "--host="+to.Addr.String(), fmt.Sprintf("--count=%d", 2*pings), "--duration=60s", "--write="+file)
	}()
	fixture.Eventually(t, fixture.SyncTime, "the begin of the capture", func(context.Context) error {
		select {
		case err := <-ended:
			t.Fatalf("the capture has ended before any packet: %v", err)
		default:
		}
		info, err := os.Stat(file)
		if err == nil && info.Size() == 0 {
			err = errors.New("the file is empty")
		}
		return err
	})
	fixture.Eventually(t, fixture.SyncTime, "a connection that is not captured", fixture.AsksHTTP(from.NetNS, to.Addr, 8080))
	fixture.Meet(t, from.NetNS, x.Addr(t, fixture.Node1))
	for range pings {
		fixture.Echoed(t, from.NetNS, to.Addr, wire.Echo{})
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(fixture.SyncTime):
		t.Fatal("the capture has not ended after its last packet")
	}
	got := readCapture(t, file)
	if len(got) != 2*pings {
		t.Fatalf("got %d packets, want %d: %v", len(got), 2*pings, got)
	}
	request, reply := capturedEcho{from.Addr, to.Addr, 8, pcapng.Outbound}, capturedEcho{to.Addr, from.Addr, 0, pcapng.Inbound}
	requests := 0
	for i, p := range got { // a request that the machine loses has no reply
		switch {
		case p == request:
			requests++
		case p != reply || i-requests >= requests:
			t.Errorf("packet %d: got %+v, want requests %+v, each before its reply %+v", i, p, request, reply)
		}
	}
	if requests == len(got) {
		t.Error("got no replies")
	}
}

// capturedEcho is an ICMP message in a file.
type capturedEcho struct {
	source, destination netip.Addr
	kind                uint8
	direction           pcapng.Direction
}

// readCapture returns the packets of a file, which must be ICMP.
func readCapture(t *testing.T, path string) (all []capturedEcho) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for r := pcapng.NewReader(f); ; {
		block, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		p := block.Packet
		if p == nil {
			continue
		}
		const ethernet, header = 14, 20
		if len(p.Data) < ethernet+header+8 || binary.BigEndian.Uint16(p.Data[12:]) != unix.ETH_P_IP || p.Data[ethernet] != 0x45 || p.Data[ethernet+9] != unix.IPPROTO_ICMP {
			t.Fatalf("got a packet that is no ICMP: % x", p.Data)
		}
		source, _ := netip.AddrFromSlice(p.Data[ethernet+12 : ethernet+16])
		destination, _ := netip.AddrFromSlice(p.Data[ethernet+16 : ethernet+20])
		all = append(all, capturedEcho{source, destination, p.Data[ethernet+header], p.Direction})
	}
}
