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

// remindOfSockets is how often missing sockets are reported again: Events last an hour.
const remindOfSockets = 20 * time.Minute

// watchSockets reports sockets of Open vSwitch that were deleted under its programs, until the context ends. The agent's connections
// last, and so does the pod network; but no other program can connect, and after the next restart the agent can't either.
func (a *agent) watchSockets(ctx context.Context) {
	w := socketWatch{dir: ovs.DefaultRunDir, report: a.reporter.WarnNode}
	ticker := time.NewTicker(hostCheck)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			// While Open vSwitch restarts it has no sockets either: the agent is not connected then.
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
			"%s in %s were deleted while Open vSwitch runs: the pod network goes on until the agent or Open vSwitch restarts; restart ovsdb-server and ovs-vswitchd, which make them again",
			strings.Join(missing, " and "), w.dir))
	}
}
