package br0

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
)

// socketsReminder is the interval of repeated reports of missing sockets: the API server deletes Events after an hour.
const socketsReminder = 20 * time.Minute

// WatchSockets reports sockets of Open vSwitch that were deleted while it runs, until the context ends. The agent's connections continue, but
// no program can open a new one, and neither can the agent after its next restart.
func WatchSockets(ctx context.Context, bridge *native.Native, report func(reason, message string)) {
	w := socketWatch{dir: native.DefaultRunDir, report: report}
	// While Open vSwitch restarts, the agent is not connected, and missing sockets are no fault.
	wait.UntilWithContext(ctx, func(context.Context) { w.check(time.Now(), bridge.Connected()) }, checkInterval)
}

// socketWatch checks for the sockets of Open vSwitch.
type socketWatch struct {
	dir    string
	report func(reason, message string)
	again  time.Time // time of the next report
}

func (w *socketWatch) check(now time.Time, connected bool) {
	var missing []string
	for _, name := range []string{"db.sock", Name + ".mgmt"} {
		if _, err := os.Stat(filepath.Join(w.dir, name)); os.IsNotExist(err) {
			missing = append(missing, name)
		}
	}
	switch {
	case len(missing) == 0:
		w.again = time.Time{}
	case connected && !now.Before(w.again):
		w.again = now.Add(socketsReminder)
		w.report(eventreason.OpenvSwitchSocketsMissing, fmt.Sprintf(
			"sockets of Open vSwitch were deleted while it runs: %s in %s; the pod network works until the agent or Open vSwitch restarts; restart ovsdb-server and ovs-vswitchd, which create the sockets again",
			strings.Join(missing, " and "), w.dir))
	}
}
