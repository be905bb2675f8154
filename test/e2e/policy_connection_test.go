package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
)

// cutTime is how long a forbidden connection may live. The agent goes through the connections a second after the last time, or ten times as long as that
// took, when the switch's caches have followed the policies, which takes up to a second.
const cutTime = 5 * time.Second

// A direction counts as dead when nothing comes for silence, many times the interval of what is sent, while a living one is heard livingTimes: a machine that is
// busy for that long silences both.
const (
	silence     = time.Second
	livingTimes = 50
)

// testConnections: rules have one direction. If a connection becomes forbidden, the opener's packets are dropped, and also the replies that the
// acceptor may not send unsolicited. An allowed connection continues, however long its opener is silent.
func testConnections(t *testing.T, c *cluster) {
	ns := c.Namespace(t)
	pods := c.Run(t, ns, fixture.Netexec("a", fixture.Node1), fixture.Netexec("b", fixture.Node1), fixture.Netexec("c", fixture.Node2))
	opener, near, far := pods[0], pods[1], pods[2]
	for _, to := range []pod{near, far} {
		fixture.Meet(t, opener.NetNS, to.Addr)
	}
	c.SetPolicy(t, ingressPolicy(ns, "opener", opener.Name)) // no pod may connect to it
	c.SetPolicy(t, ingressPolicy(ns, "near", near.Name, opener.Name, far.Name))
	for _, other := range []pod{near, far} {
		isolated(t, other, opener)
		fixture.MustNotReach(t, "a new connection from "+other.Name+" to "+opener.Name, fixture.AsksHTTP(other.NetNS, opener.Addr, fixture.HTTPPort), fixture.AsksHTTP(opener.NetNS, other.Addr, fixture.HTTPPort))
	}

	toNear, toFar := openDuplex(t, opener, near), openDuplex(t, opener, far)
	fromFar := openDuplex(t, far, near)
	quiet := openDuplex(t, opener, far)
	for _, e := range []*talker{quiet.there, quiet.back, fromFar.back} {
		e.quieten()
	}
	toNear.lives(t, time.Now())
	fromFar.back.hears(t, time.Now(), "the opener is heard on "+fromFar.name)
	forbidden := time.Now()
	c.SetPolicy(t, ingressPolicy(ns, "near", near.Name))
	c.SetPolicy(t, ingressPolicy(ns, "far", far.Name, opener.Name))
	toNear.back.dies(t, toFar.there, forbidden, "the opener of "+toNear.name, cutTime)
	toNear.there.dies(t, toFar.there, forbidden, "the answer of "+toNear.name, cutTime)
	fromFar.back.dies(t, toFar.there, forbidden, "the opener of "+fromFar.name, cutTime)
	toFar.lives(t, time.Now())
	answered := time.Now()
	if _, err := quiet.back.conn.Write([]byte("still there?")); err != nil {
		t.Error(err)
	}
	quiet.there.hears(t, answered, "the reply to a silent opener")
}

// isolated returns when a policy that denies the connection is active.
func isolated(t *testing.T, from, to pod) {
	t.Helper()
	fixture.Stops(t, fixture.SyncTime, from.Name+" is isolated from "+to.Name, func(ctx context.Context) (answered, _ error) {
		// A busy machine may hold a switch up for longer than the first of them waits, and its flows with it.
		for _, patience := range []time.Duration{300 * time.Millisecond, time.Second} {
			ctx, cancel := context.WithTimeout(ctx, patience)
			err := from.NetNS.Ping(ctx, to.Addr, wire.Echo{})
			cancel()
			if err == nil {
				return errors.New("a ping is answered, which a policy denies"), nil
			}
		}
		return nil, nil
	})
}

// ingressPolicy lets only the named pods of the namespace reach a pod.
func ingressPolicy(namespace, name, target string, from ...string) *networkingv1.NetworkPolicy {
	app := func(name string) metav1.LabelSelector {
		return metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
	}
	p := &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec:       networkingv1.NetworkPolicySpec{PodSelector: app(target), PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}},
	}
	for _, f := range from {
		selector := app(f)
		p.Spec.Ingress = append(p.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{From: []networkingv1.NetworkPolicyPeer{{PodSelector: &selector}}})
	}
	return p
}

// duplex is a TCP connection, or packets of UDP that go to and fro, on which each end talks without waiting for the other.
type duplex struct {
	name        string
	there, back *talker // the opener, and the other end
}

// talker is an end.
type talker struct {
	conn    net.Conn
	quieten func()       // ends its sending
	sent    atomic.Int64 // bytes
	heard   atomic.Int64 // bytes
	times   atomic.Int64 // it has heard something
	last    atomic.Int64 // when it has heard something, in Unix nanoseconds
}

// openDuplex opens a TCP connection on which both ends talk.
func openDuplex(t *testing.T, from, to pod) *duplex {
	t.Helper()
	return openDuplexTo(t, from, to.End(), 0)
}

// openDuplexTo is openDuplex to a port of what need not be a pod; 0: any.
func openDuplexTo(t *testing.T, from pod, to end, port uint16) *duplex {
	t.Helper()
	opener, acceptor := connect(t, from.End(), to, port)
	d := newDuplex(t, from.Name+" to "+to.Name, opener, acceptor)
	d.there.talks(t)
	d.back.talks(t)
	return d
}

// newDuplex has both ends listen until the test ends.
func newDuplex(t *testing.T, name string, opener, acceptor net.Conn) *duplex {
	d := &duplex{name: name, there: &talker{conn: opener}, back: &talker{conn: acceptor}}
	for _, e := range []*talker{d.there, d.back} {
		var listening sync.WaitGroup
		listening.Go(e.hear)
		t.Cleanup(func() { e.conn.Close(); listening.Wait() })
	}
	return d
}

// talks until it is quietened, or the test ends.
func (e *talker) talks(t *testing.T) {
	stop := make(chan struct{})
	var talking sync.WaitGroup
	talking.Go(func() { e.send(stop) })
	e.quieten = sync.OnceFunc(func() {
		close(stop)
		_ = e.conn.SetWriteDeadline(time.Now()) // ends a write to a dead connection, whose buffer is full
		talking.Wait()
		_ = e.conn.SetWriteDeadline(time.Time{})
	})
	t.Cleanup(e.quieten)
}

func (e *talker) send(stop <-chan struct{}) {
	tick := time.NewTicker(pingInterval)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		// Little data waits for a dead connection: the buffer holds it.
		n, err := e.conn.Write([]byte("word"))
		e.sent.Add(int64(n))
		if errors.Is(err, net.ErrClosed) {
			return
		}
	}
}

func (e *talker) hear() {
	buffer := make([]byte, 1<<12)
	for {
		n, err := e.conn.Read(buffer)
		if err != nil {
			return
		}
		e.heard.Add(int64(n))
		e.times.Add(1)
		e.last.Store(time.Now().UnixNano())
	}
}

// hears waits until something has come after a moment.
func (e *talker) hears(t *testing.T, after time.Time, what string) {
	t.Helper()
	fixture.Eventually(t, fixture.SyncTime, what, func(context.Context) error {
		if last := time.Unix(0, e.last.Load()); last.Before(after) {
			return fmt.Errorf("the last word came %v before", after.Sub(last))
		}
		return nil
	})
}

// lives waits until both ends have heard the other after a moment.
func (d *duplex) lives(t *testing.T, after time.Time) {
	t.Helper()
	d.back.hears(t, after, "the opener is heard on "+d.name)
	d.there.hears(t, after, "the answer is heard on "+d.name)
}

// dies waits until no more data arrives, which must be within that time, while the living end hears the other.
func (e *talker) dies(t *testing.T, living *talker, since time.Time, what string, within time.Duration) {
	t.Helper()
	var last time.Duration
	var latest, before int64 // when it was heard, and how often the living end had heard something then
	fixture.Stops(t, fixture.SyncTime, what+" has ended", func(context.Context) (heard, _ error) {
		if now := e.last.Load(); now != latest {
			latest, before = now, living.times.Load()
		}
		at := time.Unix(0, latest)
		if ago := time.Since(at); ago < silence {
			return fmt.Errorf("it was heard %v ago", ago), nil
		}
		if times := living.times.Load() - before; times < livingTimes {
			return nil, fmt.Errorf("the living connection was heard %d times since then, want %d", times, livingTimes)
		}
		last = at.Sub(since)
		return nil, nil
	})
	t.Logf("%s was heard last %v after it was forbidden", what, last)
	if last > within {
		t.Errorf("%s was heard for %v after it was forbidden, %v is allowed", what, last, within)
	}
}
