package node

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// remindOfSockets is the interval of repeated reports of missing sockets: the API server deletes Events after an hour.
const remindOfSockets = 20 * time.Minute

// watchSockets reports sockets of Open vSwitch that were deleted while it runs, until the context ends. The agent's connections continue, but
// no program can open a new one, and neither can the agent after its next restart.
func (a *agent) watchSockets(ctx context.Context) {
	w := socketWatch{dir: ovs.DefaultRunDir, report: a.reporter.WarnNode}
	ticker := time.NewTicker(hostCheck)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			// A restart of Open vSwitch is no fault: the agent is not connected then.
			w.look(now, a.bridge.Connected())
		}
	}
}

// socketWatch looks for the sockets that Open vSwitch made for the bridge.
type socketWatch struct {
	dir    string
	report func(reason, message string)
	again  time.Time // when what is missing is reported again
}

func (w *socketWatch) look(now time.Time, connected bool) {
	var missing []string
	for _, name := range []string{"db.sock", bridgeName + ".mgmt"} {
		if _, err := os.Stat(filepath.Join(w.dir, name)); os.IsNotExist(err) {
			missing = append(missing, name)
		}
	}
	switch {
	case len(missing) == 0:
		w.again = time.Time{}
	case connected && !now.Before(w.again):
		w.again = now.Add(remindOfSockets)
		w.report(reasonSwitchSockets, fmt.Sprintf(
			"sockets of Open vSwitch were deleted while it runs: %s in %s; the pod network works until the agent or Open vSwitch restarts; restart ovsdb-server and ovs-vswitchd, which create the sockets again",
			strings.Join(missing, " and "), w.dir))
	}
}
