package dnsresolver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// Limits of one resolution.
const (
	queryTimeout  = 2 * time.Second
	lookupTimeout = 15 * time.Second
	maxServers    = 3 // as glibc
	maxQueries    = 8 // for the targets of aliases
)

// Servers returns the addresses of the DNS servers, with ports.
type Servers func() ([]string, error)

// ServersOf returns the servers of a file such as /etc/resolv.conf, which it reads again when the file changes.
func ServersOf(path string) Servers {
	var mu sync.Mutex
	var read time.Time
	var servers []string
	return func() ([]string, error) {
		mu.Lock()
		defer mu.Unlock()
		info, err := os.Stat(path)
		if err != nil {
			return nil, fmt.Errorf("find the DNS servers: %w", err)
		}
		if info.ModTime().Equal(read) {
			return servers, nil
		}
		config, err := dns.ClientConfigFromFile(path)
		if err != nil {
			return nil, fmt.Errorf("find the DNS servers: %w", err)
		}
		if len(config.Servers) == 0 {
			return nil, fmt.Errorf("%s has no nameserver", path)
		}
		read, servers = info.ModTime(), nil
		for _, s := range config.Servers[:min(len(config.Servers), maxServers)] {
			servers = append(servers, net.JoinHostPort(s, config.Port))
		}
		return servers, nil
	}
}

// client asks DNS servers.
type client struct {
	servers Servers
}

// lookUp resolves a name. It asks for the target of an alias if a response has only the alias.
func (c client) lookUp(ctx context.Context, name string) (reply, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	servers, err := c.servers()
	if err != nil {
		return reply{}, err
	}
	asked, ttl := map[string]bool{}, maxTTL
	for range maxQueries {
		if asked[canonical(name)] {
			return reply{}, errLoop
		}
		asked[canonical(name)] = true
		r, err := c.ask(ctx, servers, name)
		if err != nil {
			return reply{}, err
		}
		if r.ttl = min(r.ttl, ttl); r.alias == "" {
			return r, nil
		}
		name, ttl = r.alias, r.ttl
	}
	return reply{}, fmt.Errorf("the name has more than %d aliases", maxQueries)
}

// ask asks the servers one after the other, until one answers.
func (c client) ask(ctx context.Context, servers []string, name string) (reply, error) {
	var errs []error
	for _, server := range servers {
		m, err := exchange(ctx, server, name)
		if err == nil {
			var r reply
			if r, err = read(m, name); err == nil || errors.Is(err, errLoop) {
				return r, err
			}
		}
		errs = append(errs, fmt.Errorf("%s: %w", server, err))
		if ctx.Err() != nil {
			break
		}
	}
	return reply{}, errors.Join(errs...)
}

// errOtherQuestion is the error of a response that is not for the query.
var errOtherQuestion = errors.New("the DNS server answered another question")

// exchange asks by UDP, and by TCP if the response is truncated.
func exchange(ctx context.Context, server, name string) (*dns.Msg, error) {
	query := new(dns.Msg)
	query.SetQuestion(dns.Fqdn(name), dns.TypeA)
	for _, network := range []string{"udp", "tcp"} {
		c := dns.Client{Net: network, Timeout: queryTimeout}
		m, _, err := c.ExchangeContext(ctx, query, server)
		if err != nil && (network == "tcp" || m == nil || !m.Truncated) {
			return nil, err
		}
		if !isFor(m, query) {
			return nil, errOtherQuestion
		}
		if !m.Truncated {
			return m, nil
		}
	}
	return nil, errors.New("the DNS server truncates its response by TCP, too")
}

// isFor reports whether the response is for the query, whose ID the client has compared.
func isFor(m, query *dns.Msg) bool {
	if !m.Response || len(m.Question) != 1 {
		return false
	}
	got, want := m.Question[0], query.Question[0]
	return canonical(got.Name) == canonical(want.Name) && got.Qtype == want.Qtype && got.Qclass == want.Qclass
}
