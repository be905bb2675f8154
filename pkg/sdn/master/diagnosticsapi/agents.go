package diagnosticsapi

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
)

// AgentPort is the port of agents.
const AgentPort = 9447

const (
	dialTimeout     = 5 * time.Second
	idleTimeout     = time.Minute
	maxIdle         = 256 // connections to all agents; each takes some 30 KiB
	maxHeader       = 16 << 10
	maxStatusAnswer = diagnostics.MaxStatusAnswer
	maxErrorAnswer  = 4 << 10
)

// decoder decodes an answer, and limits its size.
type decoder interface {
	decode(r io.Reader) error
}

// HTTPSAgents requests answers of agents by HTTPS.
type HTTPSAgents struct {
	client *http.Client
	port   string
}

// NewHTTPSAgents returns Agents on the port. config returns the TLS configuration for a node, with the client's certificate and the CA of agents; nil if
// the controller has none yet. The agent's certificate must have the configuration's ServerName, or else the name of its node.
func NewHTTPSAgents(port uint16, config func(node string) *tls.Config) *HTTPSAgents {
	transport := &http.Transport{
		Proxy: nil, // neither of the environment: agents are in the same network
		DialTLSContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			return dial(ctx, address, config)
		},
		DisableCompression: true, // a small answer must not become a large one
		MaxIdleConns:       maxIdle, MaxIdleConnsPerHost: 1, IdleConnTimeout: idleTimeout, MaxResponseHeaderBytes: maxHeader,
	}
	refuse := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &HTTPSAgents{client: &http.Client{Transport: transport, CheckRedirect: refuse}, port: strconv.Itoa(int(port))}
}

// Close closes idle connections.
func (a *HTTPSAgents) Close() { a.client.CloseIdleConnections() }

// hostOf returns the host of a URL for a node and its address. Connections are reused by this host, so never for another node or another address.
func hostOf(node string, hostIP netip.Addr) string {
	return node + "." + hex.EncodeToString(hostIP.AsSlice())
}

// dial connects to the address of a node, and verifies the certificate of the node's agent.
func dial(ctx context.Context, address string, config func(node string) *tls.Config) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	i := strings.LastIndexByte(host, '.')
	raw, err := hex.DecodeString(host[i+1:])
	addr, ok := netip.AddrFromSlice(raw)
	if err != nil || !ok || i < 0 {
		return nil, fmt.Errorf("%q is not a node and its address", host)
	}
	node := host[:i]
	base := config(node)
	if base == nil {
		return nil, errNoCertificate
	}
	own := base.Clone()
	own.ServerName, own.NextProtos, own.MinVersion = cmp.Or(base.ServerName, node), []string{"http/1.1"}, max(base.MinVersion, tls.VersionTLS12)
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	plain, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(addr.String(), port))
	if err != nil {
		return nil, err
	}
	conn := tls.Client(plain, own)
	if err := conn.HandshakeContext(ctx); err != nil {
		_ = plain.Close()
		return nil, err
	}
	return conn, nil
}

// Get implements Agents.
func (a *HTTPSAgents) Get(ctx context.Context, node string, hostIP netip.Addr, path string, query url.Values, into any) error {
	body, err := a.Stream(ctx, node, hostIP, path, query)
	if err != nil {
		return err
	}
	return decodeAnswer(body, into)
}

// Post implements Agents.
func (a *HTTPSAgents) Post(ctx context.Context, node string, hostIP netip.Addr, path string, object, into any) error {
	content, err := json.Marshal(object)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, a.urlOf(node, hostIP, path, nil), bytes.NewReader(content))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", contentTypeJSON)
	body, err := a.do(r, node)
	if err != nil {
		return err
	}
	return decodeAnswer(body, into)
}

// Stream implements Agents.
func (a *HTTPSAgents) Stream(ctx context.Context, node string, hostIP netip.Addr, path string, query url.Values) (io.ReadCloser, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, a.urlOf(node, hostIP, path, query), nil)
	if err != nil {
		return nil, err
	}
	return a.do(r, node)
}

func (a *HTTPSAgents) urlOf(node string, hostIP netip.Addr, path string, query url.Values) string {
	u := url.URL{Scheme: "https", Host: net.JoinHostPort(hostOf(node, hostIP), a.port), Path: path, RawQuery: query.Encode()}
	return u.String()
}

// do returns the body of the answer, which the caller closes.
func (a *HTTPSAgents) do(r *http.Request, node string) (io.ReadCloser, error) {
	r.Host = node
	r.Header.Set("Accept", "*/*")
	response, err := a.client.Do(r)
	if err != nil {
		var wrapper *url.Error
		if errors.As(err, &wrapper) { // its text has the internal host
			return nil, wrapper.Err
		}
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		defer response.Body.Close()
		return nil, errorOf(response)
	}
	return response.Body, nil
}

// decodeAnswer decodes the body, and closes it.
func decodeAnswer(body io.ReadCloser, into any) error {
	defer body.Close()
	if d, ok := into.(decoder); ok {
		return d.decode(body)
	}
	content, err := readAll(body, maxStatusAnswer)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(content, into); err != nil {
		return &invalidAnswerError{err}
	}
	return nil
}

// errorOf returns the error that an agent reports: a Status, or text.
func errorOf(response *http.Response) error {
	e := &agentError{code: response.StatusCode}
	content, err := readAll(response.Body, maxErrorAnswer)
	if err != nil {
		return e
	}
	status := metav1.Status{}
	if json.Unmarshal(content, &status) == nil && status.Kind == "Status" {
		e.isStatus, e.message = true, printable(status.Message, maxMessage)
	} else {
		e.message = printable(strings.TrimSpace(string(content)), maxMessage)
	}
	return e
}

// readAll reads an answer of at most limit bytes.
func readAll(r io.Reader, limit int64) ([]byte, error) {
	content, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err == nil && int64(len(content)) > limit {
		err = &tooLargeError{limit}
	}
	return content, err
}
