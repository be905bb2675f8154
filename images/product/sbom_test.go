package product

import (
	"strings"
	"testing"

	"github.com/ovsdn/ovsdn/pkg/version"
)

// SPDX requires a time in UTC, also if the time is unknown.
func TestSBOM_creationTime(t *testing.T) {
	for created, want := range map[string]string{version.Unknown: "1970-01-01T00:00:00Z", "2026-01-02T03:04:05+02:00": "2026-01-02T01:04:05Z"} {
		b := sbom{image: Controller, version: version.Info{Version: "v1.2.3", Created: created}}
		content, err := b.encode()
		if err != nil || !strings.Contains(string(content), `"created": "`+want+`"`) {
			t.Errorf("created %s: got %v, want no error, and %s in\n%s", created, err, want, content)
		}
	}
}
