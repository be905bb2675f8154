#!/usr/bin/env bash
# Writes screenshots of the dashboard with invented objects to docs/dashboard, or to the directory given. It needs chromium (`make test-browser` installs it).
set -euo pipefail
directory=$(realpath -m "${1:-$(dirname "$0")/../docs/dashboard}")
cd "$(dirname "$0")/../test/browser"
OVSDN_SCREENSHOTS=$directory go test -count=1 -run TestScreenshots .
ls "$directory"
