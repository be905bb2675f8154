// Package probes serves kubelet's liveness and readiness probes.
package probes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// Checks are the health checks by URL path. They must not block. The probe fails with the error of its check.
type Checks map[string]func() error

// Serve serves the checks by HTTP on the address, host:port, until stop is called. With the address "0" it does nothing.
func Serve(ctx context.Context, address string, checks Checks) (stop func(), err error) {
	if address == "0" {
		return func() {}, nil
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--healthz-bind-address: %w (give another, or 0 for none)", err)
	}
	mux := http.NewServeMux()
	for path, check := range checks {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			if err := check(); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
			fmt.Fprintln(w, "ok")
		})
	}
	server := &http.Server{Handler: mux, ReadTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second}
	var running sync.WaitGroup
	running.Go(func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			klog.FromContext(ctx).Error(err, "Failed to serve probes", "address", address)
		}
	})
	return func() {
		_ = server.Close()
		running.Wait()
	}, nil
}
