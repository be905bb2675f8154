package store

import (
	"bufio"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

// relay stands between a backend and its switch and counts what changes the switch.
type relay struct {
	mu             sync.Mutex
	flows, deletes int
	groups, meters int
	flushes        int
	bundles        int
}

// newRelay starts a switch with the bridge, and returns a backend that reaches it through a relay.
func newRelay(t *testing.T) (*ovstest.Switch, *ovs.Native, *relay) {
	t.Helper()
	sw, _ := newSwitch(t)
	dir, err := os.MkdirTemp("", "relay") // not t.TempDir: a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	listener, err := net.Listen("unix", filepath.Join(dir, ovstest.Bridge+".mgmt"))
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{}
	var workers sync.WaitGroup
	workers.Go(func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("unix", filepath.Join(sw.RunDir, ovstest.Bridge+".mgmt"))
			if err != nil {
				near.Close()
				continue
			}
			workers.Go(func() {
				_, _ = io.Copy(near, far) // ends with either
				near.Close()
			})
			workers.Go(func() {
				r.forward(near, far)
				far.Close()
			})
		}
	})
	bridge := ovs.NewNative(ovstest.Bridge, dir)
	t.Cleanup(func() {
		bridge.Close()
		listener.Close()
		workers.Wait()
	})
	return sw, bridge, r
}

// forward counts each message before it passes it on, so that who has an answer finds it counted.
func (r *relay) forward(from io.Reader, to io.Writer) {
	input := bufio.NewReader(from)
	for {
		start, err := input.Peek(openflow.HeaderLen)
		if err != nil {
			return
		}
		header, err := openflow.ParseHeader(start)
		if err != nil {
			return
		}
		b := make([]byte, header.Length)
		if _, err := io.ReadFull(input, b); err != nil {
			return
		}
		if _, m, err := openflow.Decode(b); err == nil {
			r.note(m)
		}
		if _, err := to.Write(b); err != nil {
			return
		}
	}
}

func (r *relay) note(m openflow.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch m := m.(type) {
	case *openflow.BundleAdd:
		switch inner := m.Message.(type) {
		case *openflow.FlowMod:
			if inner.Command == openflow.FlowAdd {
				r.flows++
			} else {
				r.deletes++
			}
		case *openflow.GroupMod:
			r.groups++
		}
	case *openflow.BundleControl:
		if m.Step == openflow.BundleCommit {
			r.bundles++
		}
	case *openflow.MeterMod:
		r.meters++
	case *openflow.CTFlush, *openflow.CTFlushZone:
		r.flushes++
	}
}

// counts are what came since the last call.
type counts struct{ flows, deletes, groups, meters, flushes, bundles int }

func (r *relay) take() counts {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := counts{r.flows, r.deletes, r.groups, r.meters, r.flushes, r.bundles}
	r.flows, r.deletes, r.groups, r.meters, r.flushes, r.bundles = 0, 0, 0, 0, 0, 0
	return c
}
