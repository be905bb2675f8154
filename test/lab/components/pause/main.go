// pause is process 1 of a pod's sandbox. It holds the pod's namespaces open, reaps what other containers orphan
// into a shared PID namespace, and ends at once when the runtime stops the sandbox. As process 1 it must ask for
// those signals: the kernel delivers none to it by default.
package main

import (
	"errors"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	// A channel of its own, so that a burst of ended children can't crowd out the order to stop.
	stop, child := make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	signal.Notify(child, syscall.SIGCHLD)
	for {
		select {
		case <-stop:
			return
		case <-child:
			reap()
		}
	}
}

// reap collects every child that has ended: one SIGCHLD may stand for several.
func reap() {
	for {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || pid == 0 {
			return
		}
	}
}
