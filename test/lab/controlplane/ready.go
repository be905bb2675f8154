package controlplane

import (
	"context"
	"fmt"
	"net"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// pollInterval is how often something that is about to be ready is asked.
const pollInterval = 50 * time.Millisecond

// tryTimeout is for one try at an API server that is busy starting.
const tryTimeout = 10 * time.Second

// WaitReady returns when the API server reports that it is ready, or with the last error.
func WaitReady(ctx context.Context, config *rest.Config) error {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make a client of the API server: %w", err)
	}
	return poll(ctx, "kube-apiserver is not ready", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, tryTimeout)
		defer cancel()
		return client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

func waitSocket(ctx context.Context, path string) error {
	return poll(ctx, "no server listens on "+path, func(ctx context.Context) error {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

// poll calls the function until it succeeds or the context ends. Then it returns the last error.
func poll(ctx context.Context, failure string, try func(context.Context) error) error {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w (%w)", failure, err, context.Cause(ctx))
		case <-ticker.C:
		}
	}
}
