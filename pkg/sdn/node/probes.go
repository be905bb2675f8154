package node

import (
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/pkg/sdn/probes"
)

func (a *agent) probes() probes.Checks {
	return probes.Checks{
		"/healthz": func() error {
			_ = a.cni.NotReady() // does not return if the process is deadlocked
			return errors.Join(checkMounted(native.DefaultRunDir), checkMounted(filepath.Dir(a.CNISocket)))
		},
		"/readyz": func() error {
			return errors.Join(a.cni.NotReady(), a.condition.unavailable(), a.apiHealth.Err(), a.refused())
		},
	}
}

// checkMounted fails if the directory was deleted on the host after it was mounted into this container. Only a new container sees a directory
// that was created again, as systemd does with the RuntimeDirectory= of a restarted service.
func checkMounted(dir string) error {
	var s unix.Stat_t
	if err := unix.Stat(dir, &s); err == nil && s.Nlink == 0 { // a directory that does not exist is no failure of the mount
		return fmt.Errorf("%s was deleted on the host since this container was started; restart the container", dir)
	}
	return nil
}

// unavailable returns the message of the Node's condition if its status is True, written or scheduled.
func (c *condition) unavailable() error {
	if v := c.get(); v != nil && v.status == corev1.ConditionTrue {
		return errors.New(v.message)
	}
	return nil
}
