package main

import (
	"path/filepath"
	"sync/atomic"

	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

// counter counts the flow-mods through a relay, alone or in bundles, of any program.
type counter struct {
	dir            string // to be used as Open vSwitch's run directory
	messages, sent atomic.Int64
}

// newCounter serves until the figure ends.
func (b *B) newCounter(s *ovstest.Switch) *counter {
	b.Helper()
	c := &counter{}
	c.dir = s.Relay(b, c.see)
	return c
}

func (c *counter) socket() string { return filepath.Join(c.dir, ovstest.Bridge+".mgmt") }

func (c *counter) reset() {
	c.messages.Store(0)
	c.sent.Store(0)
}

// flowMods returns the number of flow-mods since reset. A relay without any message is an error: then 0 means nothing.
func (c *counter) flowMods(b *B) int64 {
	b.Helper()
	if c.messages.Load() == 0 {
		b.Fatal("no message came by the counter")
	}
	return c.sent.Load()
}

func (c *counter) see(m openflow.Message) {
	c.messages.Add(1)
	if add, ok := m.(*openflow.BundleAdd); ok {
		m = add.Message
	}
	if _, ok := m.(*openflow.FlowMod); ok {
		c.sent.Add(1)
	}
}
