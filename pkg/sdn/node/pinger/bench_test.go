package pinger

import (
	"fmt"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/inputs"
)

// BenchmarkProbe is the processor time of probes and their answers with 2,000 other nodes. This host is all of them, so its kernel's answers count, too. At most
// 1 % of a core with MaxRate.
func BenchmarkProbe(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("needs root")
	}
	socket, err := OpenICMP()
	if err != nil {
		b.Fatal(err)
	}
	p := New(Options{Rate: MaxRate, MTU: 1450, Observe: func(Path, time.Duration, bool) {}})
	for i := range 2000 {
		high, low := byte(i>>8), byte(i)
		p.SetRemoteNode(fmt.Sprintf("node%d", i), &inputs.RemoteNode{
			IsNode: true, VTEP: netip.AddrFrom4([4]byte{127, 1, high, low}), Gateway: netip.AddrFrom4([4]byte{127, 2, high, low}),
		})
	}
	answered := make(chan struct{}, 1)
	var receiving sync.WaitGroup
	receiving.Go(func() {
		for {
			from, number, err := socket.Receive()
			if err != nil {
				return
			}
			p.answer(from, number, time.Now())
			answered <- struct{}{}
		}
	})
	before := processorTime(b)
	for b.Loop() {
		p.expire(time.Now())
		chosen, number, size, _ := p.choose(time.Now())
		if err := socket.Send(chosen.to, size, number); err != nil {
			b.Fatal(err)
		}
		<-answered
	}
	used := processorTime(b) - before
	b.ReportMetric(100*MaxRate*used.Seconds()/float64(b.N), "%core")
	if err := socket.Close(); err != nil {
		b.Error(err)
	}
	receiving.Wait()
}

// processorTime returns that of this process.
func processorTime(b *testing.B) time.Duration {
	var use unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &use); err != nil {
		b.Fatal(err)
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}
