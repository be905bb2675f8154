package node

import (
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/probes"
)

func (a *agent) probes() probes.Checks {
	return probes.Checks{
		"/healthz": func() error {
			_ = a.door.closed() // a process that is stuck does not answer
			return errors.Join(checkMounted(ovs.DefaultRunDir), checkMounted(filepath.Dir(a.CNISocket)))
		},
		"/readyz": func() error {
			return errors.Join(a.door.closed(), a.condition.unavailable(), a.reach.failing(), a.refused())
		},
	}
}

// checkMounted fails if the folder was removed on the host after it was mounted into this container, which never sees the one that has been
// made instead: only a new container does. systemd does so with a service's RuntimeDirectory= when the service is restarted.
func checkMounted(dir string) error {
	var s unix.Stat_t
	if err := unix.Stat(dir, &s); err == nil && s.Nlink == 0 { // that there is none is no fault of the mount
		return fmt.Errorf("%s was removed on the host since this container was started: it must be started again to see the new one", dir)
	}
	return nil
}

// unavailable returns what the Node's condition says against its network, or is about to.
func (c *condition) unavailable() error {
	if v := c.get(); v != nil && v.status == corev1.ConditionTrue {
		return errors.New(v.message)
	}
	return nil
}
