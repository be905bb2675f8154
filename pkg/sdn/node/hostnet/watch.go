package hostnet

import (
	"context"
	"fmt"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/time/rate"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/pause"
)

const (
	// debounce is the wait after an event for further ones: a flush of a table is many messages.
	debounce = 20 * time.Millisecond

	// Syncs are limited, since another program may revert each of them.
	minSyncInterval = time.Second
	syncBurst       = 5
)

// syncLoop calls sync at once, every interval and after every event, until the context ends. If watch fails, it polls. It records
// results in the status.
func syncLoop(ctx context.Context, interval time.Duration, sync func(context.Context) ([]string, error), watch func() (*watcher, error), status *syncStatus) {
	logger := klog.FromContext(ctx)
	var events <-chan struct{}
	if w, err := watch(); err != nil {
		logger.Error(err, "Failed to watch the host's network settings; polling", "interval", interval)
	} else {
		defer w.close()
		events = w.events
	}
	limiter := rate.NewLimiter(rate.Every(minSyncInterval), syncBurst)
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for limiter.Wait(ctx) == nil { // it fails only when the context ends
		select { // this sync handles events until now
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
		status.record(err, interval/2) // less than an interval, since ticks jitter
		if err != nil {
			logger.Error(err, "Failed to restore the host's network settings", "retryAfter", interval)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-events:
			if !pause.For(ctx, debounce) {
				return
			}
		}
	}
}

// watcher receives messages of netlink multicast groups.
type watcher struct {
	socket *nl.NetlinkSocket
	events chan struct{} // of capacity 1: a relevant message was received
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
		signal := err != nil // a lost message may have been relevant
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
		// Usually ENOBUFS: the socket buffer overflowed. Wait, so as not to spin.
		select {
		case <-w.stop:
			return
		case <-time.After(minSyncInterval):
		}
	}
}

func (w *watcher) close() {
	close(w.stop)
	w.socket.Close()
	<-w.done
}
