package e2e

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ovsdn/ovsdn/test/lab"
)

// upgradeVariable names the commit that an upgrade begins at.
const upgradeVariable = "OVSDN_E2E_UPGRADE_FROM"

// buildCommit builds the programs of the commit before this one, or of the one that the environment names, in a copy of its tree. What is not
// committed here is part of the upgrade.
func buildCommit(t *testing.T) lab.Build {
	t.Helper()
	name := cmp.Or(os.Getenv(upgradeVariable), "HEAD~1")
	// The clone is not root's.
	out, err := runIn(t.Context(), "../..", "git", "-c", "safe.directory=*", "rev-parse", "--verify", "--end-of-options", name+"^{commit}")
	if err != nil {
		t.Fatalf("There is no commit %s to upgrade from. A shallow clone gets one more by `git fetch --deepen=1`; %s names another commit: %v", name, upgradeVariable, err)
	}
	commit := strings.TrimSpace(out)
	b := lab.Build{Checkout: t.TempDir()}
	b.BinDir = filepath.Join(b.Checkout, "bin")
	archive := filepath.Join(b.Checkout, "source.tar")
	// Images of two versions differ, also when the programs' sources don't.
	stamp := fmt.Sprintf("-s -w -X 'github.com/ovsdn/ovsdn/pkg/version.stamp=before-%.12s %s unknown'", commit, commit)
	for _, step := range []struct {
		dir     string
		command []string
	}{
		{"../..", []string{"git", "-c", "safe.directory=*", "archive", "--output=" + archive, commit}},
		{b.Checkout, []string{"tar", "--extract", "--file=" + archive}},
		{b.Checkout, []string{"go", "build", "-trimpath", "-ldflags", stamp, "-o", "bin/", "./cmd/ovsdn-node", "./cmd/ovsdn-controller", "./cmd/ovsdn-cni"}},
		// The images of all commits have it.
		{"../..", []string{"go", "build", "-trimpath", "-ldflags", "-s -w", "-o", b.BinDir + "/", "github.com/containernetworking/plugins/plugins/meta/portmap"}},
	} {
		if _, err := runIn(t.Context(), step.dir, step.command...); err != nil {
			t.Fatalf("build %s: %v", name, err)
		}
	}
	t.Logf("the upgrade begins at %s, %.12s", name, commit)
	return b
}

// runIn runs a command on this host, in a folder, and returns what it writes.
func runIn(ctx context.Context, dir string, command ...string) (string, error) {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(command, " "), err, out)
	}
	return string(out), nil
}
