package node

import (
	"path/filepath"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostnet"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sysctl"
)

// formerSysctls is a file beside the CNI socket: what is below /run is lost with the machine's restart, as sysctls are.
const formerSysctls = "sysctls.json"

func (c Config) sysctls() hostnet.Sysctls {
	return hostnet.Sysctls{Dir: sysctl.Dir(c.SysctlDir), Former: filepath.Join(filepath.Dir(c.CNISocket), formerSysctls)}
}
