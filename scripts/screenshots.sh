#!/usr/bin/env bash
# Writes screenshots of the dashboard with invented objects to docs/dashboard, or to the directory given. It needs chromium (`make test-browser` installs it).
# docs/diagnostics.md embeds those in docs/dashboard: commit them.
set -euo pipefail
# sudo's PATH often lacks the directory of Go's installation instructions.
PATH=$PATH:/usr/local/go/bin
directory=$(realpath -m "${1:-$(dirname "$0")/../docs/dashboard}")
cd "$(dirname "$0")/../test/browser"
OVSDN_SCREENSHOTS=$directory go test -count=1 -timeout 30m -run TestScreenshots .
ls "$directory"
