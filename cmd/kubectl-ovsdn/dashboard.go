package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

func dashboardCommand(flags *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	var address string
	var port uint16
	cmd := &cobra.Command{
		Use:   "dashboard",
		Short: "Serve a web page with nodes, tenants and flows to a browser on this machine",
		Long: "Serve a web page to a browser on this machine until Ctrl-C, and print its URL: nodes with their health and loss, tenants, which pods may talk to which,\n" +
			"and the flows of a node. The page only reads, with the rights of your kubeconfig; its requests pass through this program, and your credentials do not\n" +
			"reach the browser. The URL has a token: do not pass it on.",
		Example: "  kubectl ovsdn dashboard\n\n  # from another machine\n  ssh -t -o ExitOnForwardFailure=yes -L 127.0.0.1:8001:127.0.0.1:8001 jumphost kubectl ovsdn dashboard --port=8001",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("unexpected argument %q", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			config, err := flags.ToRESTConfig()
			if err != nil {
				return err
			}
			listener, err := listenOnLoopback(cmd.Context(), address, port)
			if err != nil {
				return err
			}
			defer listener.Close()
			d, err := newDashboard(config, listener.Addr().String())
			if err != nil {
				return err
			}
			fmt.Fprintf(streams.Out, "http://%s/%s/#token=%s\n", listener.Addr(), d.page, d.token)
			fmt.Fprintln(streams.ErrOut, "Open this URL in a browser on this machine. With it, anyone reads the cluster with your rights. Ctrl-C ends the dashboard.")
			return d.serve(cmd.Context(), listener)
		},
	}
	cmd.Flags().StringVar(&address, "address", "127.0.0.1", "loopback `address` on which the dashboard is served")
	cmd.Flags().Uint16Var(&port, "port", 0, "`port` on which the dashboard is served; 0 is any free one")
	return cmd
}

// listenOnLoopback refuses other addresses: the page has the user's rights.
func listenOnLoopback(ctx context.Context, address string, port uint16) (net.Listener, error) {
	addr, err := netip.ParseAddr(address)
	if err != nil || !addr.Unmap().IsLoopback() {
		return nil, usagef("--address=%s is not a loopback address such as 127.0.0.1; from another machine, forward the port by ssh -L", address)
	}
	var c net.ListenConfig
	l, err := c.Listen(ctx, "tcp", netip.AddrPortFrom(addr.Unmap(), port).String())
	if err != nil {
		return nil, fmt.Errorf("serve the dashboard: %w", err)
	}
	return l, nil
}

// serve answers requests until the context ends.
func (d *dashboard) serve(ctx context.Context, l net.Listener) error {
	server := &http.Server{
		Handler:           d,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       2 * apiTimeout,
		WriteTimeout:      2 * apiTimeout,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    16 << 10,
	}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })() // requests only read
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the dashboard: %w", err)
	}
	return nil
}
