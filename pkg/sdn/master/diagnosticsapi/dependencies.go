package diagnosticsapi

import (
	"context"
	"io"
	"net/netip"
	"net/url"
)

// Agents are the agents of nodes.
type Agents interface {
	// Get requests the path from the agent of the node and decodes its JSON answer into the value. An answer that is too large is an error. If the
	// value has a method decode(io.Reader) error, that decodes the answer instead and limits its size.
	Get(ctx context.Context, node string, hostIP netip.Addr, path string, query url.Values, into any) error
	// Post posts the JSON of an object to the path. The answer is as that of Get.
	Post(ctx context.Context, node string, hostIP netip.Addr, path string, object, into any) error
	// Stream is Get for an answer that is sent over some time. It returns the body, which the caller closes.
	Stream(ctx context.Context, node string, hostIP netip.Addr, path string, query url.Values) (io.ReadCloser, error)
}

// Nodes has all nodes.
type Nodes interface {
	// HasSynced reports whether all nodes are known.
	HasSynced() bool
	// List returns the nodes in the order of their names.
	List() []Node
	// Get returns the node of that name.
	Get(name string) (Node, bool)
}
