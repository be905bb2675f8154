package servicehealth

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
)

// Flows has the state of the switch (*flowstore.Store).
type Flows interface {
	Statistics() flowstore.Statistics
}

// Rules translate external addresses of services on the host (*servicenat.Translator). A nil Rules is a host that can't.
type Rules interface {
	// Synced reports whether the host translates the external addresses of services: its rules were written once since the agent started.
	Synced() bool
}

// Events reports healthCheckNodePorts that can't be opened (*nodestatus.Reporter).
type Events interface {
	WarnService(namespace, name string, uid types.UID, reason, message string)
}

// NodeEvents reports that the NodeServer can't serve (*nodestatus.Reporter).
type NodeEvents interface {
	WarnNode(reason, message string)
}
