package product

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/ovsdn/ovsdn/test/tier"
)

// ovsStart is the common part of all scripts: it starts with an empty host.
const ovsStart = `
mount -t tmpfs none /etc/openvswitch
mkdir -p /run/openvswitch; mount -t tmpfs none /run/openvswitch
start=$1 schema=/usr/share/openvswitch/vswitch.ovsschema
until_ok() { n=0; until "$@" >/dev/null 2>&1; do n=$((n+1)); [ $n -lt 600 ] || { echo "timeout: $*"; exit 1; }; sleep 0.1; done; }
up() { until_ok test -S /run/openvswitch/db.sock; until_ok ovs-vsctl --no-wait get-manager; }
version() { ovsdb-tool db-version /etc/openvswitch/conf.db; }
with_version() { sed "s/\"version\": \"[0-9.]*\"/\"version\": \"$1\"/" $schema >/etc/openvswitch/s; ovsdb-tool create /etc/openvswitch/conf.db /etc/openvswitch/s; }
is() { [ "$1" = "$2" ] || { echo "got $1, want $2"; exit 1; }; }
`

// The start script of Open vSwitch's image runs with this host's Open vSwitch, in separate namespaces and folders.
func TestOVSStart(t *testing.T) {
	tier.Parallel(t)
	script, err := filepath.Abs("../ovs/ovs-start")
	if err != nil {
		t.Fatal(err)
	}
	for name, body := range map[string]string{
		"an older database is converted":    `with_version 8.2.99; "$start" db & up; is "$(version)" "$(ovsdb-tool schema-version $schema)"`,
		"a newer database is not converted": `with_version 99.0.0; "$start" db & up; is "$(version)" 99.0.0`,
		"system-id and hostname are set once": `"$start" db & up
			ovs-vsctl --no-wait init -- set Open_vSwitch . external_ids:hostname=theirs
			"$start" switch & until_ok ovs-appctl -t ovs-vswitchd version
			is "$(ovs-vsctl get Open_vSwitch . external_ids:hostname)" theirs
			is "$(ovs-vsctl get Open_vSwitch . external_ids:system-id | tr -d \")" "$(cat /etc/openvswitch/system-id.conf)"`,
		"a running Open vSwitch is not replaced, in another PID namespace either": `"$start" db & up; "$start" switch & until_ok ovs-appctl -t ovs-vswitchd version
			for part in db switch; do
				for as in "" "unshare --pid --fork --mount-proc"; do
					if out=$($as "$start" $part 2>&1); then echo "$part has started"; exit 1; fi
					case $out in *"already: stop it"*) ;; *) echo "got output $out"; exit 1 ;; esac
				done
			done`,
		"a hanging Open vSwitch is not replaced": `"$start" db & up; kill -STOP "$(cat /run/openvswitch/ovsdb-server.pid)"
			if out=$("$start" db 2>&1); then echo "db has started"; exit 1; fi
			case $out in *"already: stop it"*) ;; *) echo "got output $out"; exit 1 ;; esac`,
		"files of a killed Open vSwitch do not prevent a start": `"$start" db & up; kill -9 "$(cat /run/openvswitch/ovsdb-server.pid)"; "$start" db & up`,
	} {
		t.Run(name, func(t *testing.T) {
			tier.Parallel(t)
			cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-euc", ovsStart+body, "sh", script)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
