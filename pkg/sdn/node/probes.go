package node

import (
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"

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
			return errors.Join(a.cni.NotReady(), a.condition.Err(), a.apiHealth.Err(), a.refused())
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

// refused returns the API server's refusal of this agent's writes about its Node, nil if there is none. Neither the Node's condition nor an Event
// can report it. The pod network works; the reports about it are out of date.
func (a *agent) refused() error {
	err := a.condition.Refusal()
	if err == nil {
		err = a.reporter.Refusal()
	}
	if err == nil {
		return nil
	}
	return fmt.Errorf("the API server refuses this agent's writes about its Node: %w; apply deploy/rbac and deploy/admission of this version", err)
}
