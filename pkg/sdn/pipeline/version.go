package pipeline

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"slices"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// defaultPriority is OpenFlow's, which dump-flows omits.
const defaultPriority = 32768

// noteBytes fills the note action's first 16 bytes exactly (NXAST_NOTE has a 10 byte header).
const noteBytes = 6

// versionNote returns the version of the tables: the plugin ID of the mode, then the first bytes of a hash of the static flows, so that every change
// of them changes the version.
func versionNote(mode config.Mode, flows []*ovs.Flow) ([]byte, error) {
	lines := make([][]byte, 0, len(flows))
	for _, f := range flows {
		text, err := f.MarshalText()
		if err != nil {
			return nil, fmt.Errorf("table %d, priority %d: %w", f.Table, f.Priority, err)
		}
		lines = append(lines, text)
	}
	slices.SortFunc(lines, bytes.Compare)
	sum := sha256.Sum256(bytes.Join(lines, []byte("\n")))
	return append([]byte{mode.PluginID()}, sum[:noteBytes-1]...), nil
}
