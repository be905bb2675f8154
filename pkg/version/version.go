// Package version says which version of the project a program is.
package version

import (
	"fmt"
	"runtime/debug"
	"strings"
	"time"
)

// stamp is "VERSION REVISION CREATED", set by the linker: -X github.com/ovsdn/ovsdn/pkg/version.stamp=…. Nothing else writes it.
var stamp string //nolint:gochecknoglobals // -X can set nothing else

// Unknown stands for what neither the linker nor the go command has said.
const Unknown = "unknown"

// Info is what a program knows of its own making.
type Info struct {
	// Version is what `git describe` says of the sources, or the module's version.
	Version string
	// Revision is the commit.
	Revision string
	// Created is the time of the commit in RFC 3339: that of the build would make each build another.
	Created string
}

// Get returns what the linker was told, else what the go command wrote into the program.
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

// Time is Created in UTC, and 1970 where that is not known: formats that want a time have no word for it.
func (i Info) Time() time.Time {
	t, err := time.Parse(time.RFC3339, i.Created)
	if err != nil {
		return time.Unix(0, 0).UTC()
	}
	return t.UTC()
}

// String is one line for people.
func (i Info) String() string {
	return fmt.Sprintf("%s (revision %s of %s)", i.Version, i.Revision, i.Created)
}
