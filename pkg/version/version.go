// Package version has the version of a program.
package version

import (
	"fmt"
	"runtime/debug"
	"strings"
	"time"
)

// stamp is "VERSION REVISION CREATED", set by the linker: -X github.com/ovsdn/ovsdn/pkg/version.stamp=…. Nothing else writes it.
var stamp string //nolint:gochecknoglobals // -X can set nothing else

// Unknown is the value of a field that neither the linker nor the go command has set.
const Unknown = "unknown"

// Info describes the build of a program.
type Info struct {
	// Version is the output of `git describe`, or the module's version.
	Version string
	// Revision is the commit.
	Revision string
	// Created is the time of the commit in RFC 3339. The time of the build would make builds irreproducible.
	Created string
}

// Get returns the linker's stamp, else the build information of the go command.
func Get() Info {
	build, ok := debug.ReadBuildInfo()
	if !ok {
		build = &debug.BuildInfo{}
	}
	return read(stamp, build)
}

func read(stamp string, build *debug.BuildInfo) Info {
	info := Info{Version: Unknown, Revision: Unknown, Created: Unknown}
	if words := strings.Fields(stamp); len(words) == 3 {
		return Info{Version: words[0], Revision: words[1], Created: words[2]}
	}
	if v := build.Main.Version; v != "" && v != "(devel)" {
		info.Version = build.Main.Version
	}
	for _, s := range build.Settings {
		switch s.Key {
		case "vcs.revision":
			info.Revision = s.Value
		case "vcs.time":
			info.Created = s.Value
		}
	}
	return info
}

// Time returns Created in UTC, or 1970 if it is unknown, for formats that require a time.
func (i Info) Time() time.Time {
	t, err := time.Parse(time.RFC3339, i.Created)
	if err != nil {
		return time.Unix(0, 0).UTC()
	}
	return t.UTC()
}

// String returns one line for logs and --version.
func (i Info) String() string {
	return fmt.Sprintf("%s (revision %s of %s)", i.Version, i.Revision, i.Created)
}
