package hostnet

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/time/rate"
	"k8s.io/klog/v2"
)

const (
	// settle is how long after an event to wait for the rest of what belongs to it: a flush is many messages.
	settle = 20 * time.Millisecond

	// After a burst of syncs no more than this often: two programs that undo each other must not eat the node.
	syncEvery = time.Second
	syncBurst = 5
)

// keep calls sync now, every interval and after every event, until the context ends. If the events cannot be had, the
// interval is left. What keeps failing is kept in the fault.
func keep(ctx context.Context, interval time.Duration, sync func(context.Context) ([]string, error), watch func() (*watcher, error), fault *fault) {
	logger := klog.FromContext(ctx)
	var events <-chan struct{}
	if w, err := watch(); err != nil {
		logger.Error(err, "Cannot see at once what others change on the host, only look now and then", "interval", interval)
	} else {
		defer w.close()
		events = w.events
	}
	limiter := rate.NewLimiter(rate.Every(syncEvery), syncBurst)
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for limiter.Wait(ctx) == nil { // it fails only when the context ends
		select { // what has happened until now, this sync sees
		case <-events:
		default:
		}
		changes, err := sync(ctx)
		if len(changes) > 0 {
			logger.Info("Restored the host's network settings", "changes", changes)
		}
		if ctx.Err() != nil {
			return
		}
		fault.note(err, interval/2) // ticks are not quite even
		if err != nil {
			logger.Error(err, "Cannot restore the host's network settings yet", "retry", interval)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-events:
			select {
			case <-ctx.Done():
				return
			case <-time.After(settle):
			}
		}
	}
}

// watcher listens to netlink multicast groups.
type watcher struct {
	socket *nl.NetlinkSocket
	events chan struct{} // holds at most one: something relevant has happened since it was read
	stop   chan struct{}
	done   chan struct{}
}

// newWatcher joins the groups, in the calling thread's network namespace, and signals for each relevant message.
// relevant is called from one goroutine only.
func newWatcher(protocol int, groups []uint, relevant func(syscall.NetlinkMessage) bool) (*watcher, error) {
	socket, err := nl.Subscribe(protocol, groups...)
	if err != nil {
		return nil, fmt.Errorf("join groups %v of netlink protocol %d: %w", groups, protocol, err)
	}
	w := &watcher{socket: socket, events: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{})}
	go w.read(relevant)
	return w, nil
}

func (w *watcher) read(relevant func(syscall.NetlinkMessage) bool) {
	defer close(w.done)
	for {
		messages, _, err := w.socket.Receive()
		signal := err != nil // what was lost or not understood may have been relevant
		for _, m := range messages {
			signal = relevant(m) || signal
		}
		if signal {
			select {
			case w.events <- struct{}{}:
			default:
			}
		}
		if err == nil {
			continue
		}
		// ENOBUFS, most likely: more came than the socket holds. Whatever it is, do not spin on it.
		select {
		case <-w.stop:
			return
		case <-time.After(syncEvery):
		}
	}
}

func (w *watcher) close() {
	close(w.stop)
	w.socket.Close()
	<-w.done
}
