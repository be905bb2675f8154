package main

import (
	"bufio"
	"net"
	"os/exec"
	"path/filepath"
	"sync"

	"github.com/containernetworking/plugins/pkg/ns"
)

// statusFigure: what runtimes ask every few seconds, and what every other verb has besides its work: the way to the agent and
// back, and the start of the plugin.
func statusFigure() figure {
	return figure{
		name:  "status",
		about: "STATUS, from the agent and from the plugin, beside a bare answer on a socket and a program that does nothing",
		run:   runStatus,
	}
}

func runStatus(b *B) {
	node, bare := b.newNode(), b.answerer()
	answers := b.alternate("the agent", b.samples, func() {},
		way{"ours", func() error { return askStatus(b.Context(), node.socket) }},
		way{"bare", func() error { return askStatus(b.Context(), bare) }})
	b.record("STATUS, the agent's answer", "ms", seriesOf("ours", milliseconds(answers["ours"])),
		seriesOf("bare socket", milliseconds(answers["bare"]), within(1, "ms")))

	starts := b.alternate("the plugin", b.samples, func() {},
		way{"ours", func() error { return node.runtime.status(b.Context()) }},
		way{"true", func() error {
			return node.ovs.NS.Do(func(ns.NetNS) error { return exec.CommandContext(b.Context(), "true").Run() })
		}})
	b.record("STATUS, plugin start included", "ms", seriesOf("ours", milliseconds(starts["ours"])), seriesOf("true", milliseconds(starts["true"])))
}

// answerer returns a socket on which each line gets an empty answer, until the figure ends.
func (b *B) answerer() (socket string) {
	b.Helper()
	socket = filepath.Join(b.TempDir(), "s")
	l, err := new(net.ListenConfig).Listen(b.Context(), "unix", socket)
	b.must(err)
	var serving sync.WaitGroup
	b.Cleanup(func() {
		l.Close()
		serving.Wait()
	})
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // closed
			}
			if _, err := bufio.NewReader(conn).ReadBytes('\n'); err == nil {
				_, _ = conn.Write([]byte("{}\n")) // the client fails without it
			}
			conn.Close()
		}
	})
	return socket
}
