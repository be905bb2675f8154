package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/ovsdn/ovsdn/test/lab/checkout"
)

// selfProgram is the program that becomes PID 1 of the machines.
const selfProgram = "ovsdn-lab"

// preflight returns all that is missing on this host.
func preflight(ctx context.Context, shape Shape) error {
	if os.Geteuid() != 0 {
		return errors.New("a lab needs root, for namespaces, mounts and cgroups: use sudo")
	}
	programs := []string{"nsenter", "ip"}
	if !shape.ControlPlaneOnly {
		programs = append(programs, "ovsdb-tool", "ovsdb-server", "ovs-vswitchd", "ovs-vsctl", "ovs-ofctl", "iptables", "nft", "mount")
	}
	var missing []string
	for _, program := range programs {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, program)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("not installed here: %s; Debian and Ubuntu have them in util-linux, iproute2, openvswitch-switch, iptables and nftables", strings.Join(missing, ", "))
	}
	if shape.Datapath == System && !shape.ControlPlaneOnly {
		// modprobe, since it knows where modules are, what they need, and what must not be loaded.
		if output, err := exec.CommandContext(ctx, "modprobe", "-a", "openvswitch", "vport-vxlan").CombinedOutput(); err != nil {
			return fmt.Errorf("--datapath system needs the kernel modules openvswitch and vport-vxlan, which this kernel does not load (%w: %s): use --datapath netdev",
				err, strings.TrimSpace(string(output)))
		}
	}
	return nil
}

// findBinDir returns the folder of the product's programs, and the checkout that it belongs to.
func findBinDir(asked string) (binDir, root string, err error) {
	if asked == "" {
		if asked, err = defaultBinDir(); err != nil {
			return "", "", err
		}
	}
	if binDir, err = filepath.Abs(asked); err != nil {
		return "", "", fmt.Errorf("find the programs: %w", err)
	}
	if _, err := os.Stat(filepath.Join(binDir, selfProgram)); err != nil {
		return "", "", fmt.Errorf("the lab runs %s in its machines: build it with \"make build\": %w", selfProgram, err)
	}
	root, err = checkout.Root(binDir)
	if err != nil {
		// Programs may have been built elsewhere.
		root, err = checkout.Root(".")
	}
	return binDir, root, err
}

func defaultBinDir() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find this program: %w", err)
	}
	if filepath.Base(self) == selfProgram {
		return filepath.Dir(self), nil
	}
	root, err := checkout.Root(".")
	if err != nil {
		return "", err
	}
	return filepath.Join(root, "bin"), nil
}
