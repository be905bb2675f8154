package main

import (
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

// counter counts the flow-mods and group-mods through a relay, alone or in bundles, of any program.
type counter struct {
	dir                    string // to be used as Open vSwitch's run directory
	messages, sent, groups atomic.Int64
}

// newCounter serves until the figure ends.
func (b *B) newCounter(s *ovstest.Switch) *counter {
	b.Helper()
	c := &counter{}
	c.dir = s.Relay(b, c.see)
	// The agent also gives vswitchd commands.
	for _, pattern := range []string{"ovs-vswitchd.pid", "ovs-vswitchd.*.ctl"} {
		files, err := filepath.Glob(filepath.Join(s.RunDir, pattern))
		b.must(err)
		for _, file := range files {
			b.must(os.Symlink(file, filepath.Join(c.dir, filepath.Base(file))))
		}
	}
	return c
}

func (c *counter) socket() string { return filepath.Join(c.dir, ovstest.Bridge+".mgmt") }

func (c *counter) reset() {
	c.messages.Store(0)
	c.sent.Store(0)
	c.groups.Store(0)
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
	switch m.(type) {
	case *openflow.FlowMod:
		c.sent.Add(1)
	case *openflow.GroupMod:
		c.groups.Add(1)
	}
}
