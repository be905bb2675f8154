// Package controlplane runs etcd and the Kubernetes control plane from the one multi-call binary.
//
// A Plane is a control plane on disk: its keys, and the command line of each process. The lab runs those commands
// in a machine of its own. Start runs etcd and kube-apiserver as children of this process, for tests that
// need a real API server and nothing else.
package controlplane

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"

	"github.com/ovsdn/ovsdn/test/lab/pki"
)

// Config is the directory and the addresses of a control plane.
type Config struct {
	// Kube is the multi-call Kubernetes binary (component name as first argument).
	Kube string
	// Dir holds everything: keys, kubeconfigs, etcd's data, sockets. Made when missing. Its path must be short,
	// since etcd listens on a unix socket in it.
	Dir string
	// Address is where kube-apiserver listens. Default 127.0.0.1.
	Address netip.Addr
	// Port of kube-apiserver. Default 6443.
	Port uint16
	// ServiceNetwork is where cluster IPs come from. Default 172.30.0.0/16.
	ServiceNetwork netip.Prefix
	// Proxy is the unix socket of an HTTP CONNECT proxy through which kube-apiserver connects to nodes, pods and services. Empty means that it
	// connects from its own network.
	Proxy string
	// ClusterIPs makes kube-apiserver connect to webhooks and aggregated APIs by the cluster IPs of their services, as by default. Else it connects to endpoints.
	ClusterIPs bool
}

func (c *Config) setDefaults() {
	if !c.Address.IsValid() {
		c.Address = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	if c.Port == 0 {
		c.Port = 6443
	}
	if !c.ServiceNetwork.IsValid() {
		c.ServiceNetwork = netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 30, 0, 0}), 16)
	}
}

// maxSocketPath is what fits into sockaddr_un, with its final zero.
const maxSocketPath = 107

func (c *Config) validate() error {
	var errs []error
	if c.Kube == "" {
		errs = append(errs, errors.New("no kube binary given"))
	}
	if !filepath.IsAbs(c.Dir) {
		errs = append(errs, fmt.Errorf("the directory %q is not an absolute path", c.Dir))
	}
	if socket := c.etcdSocket(); len(socket) > maxSocketPath {
		errs = append(errs, fmt.Errorf("%s is too long for a unix socket (%d of %d bytes): use a directory with a shorter path", socket, len(socket), maxSocketPath))
	}
	return errors.Join(errs...)
}

func (c *Config) etcdSocket() string { return filepath.Join(c.Dir, "etcd.sock") }

// Plane is a control plane on disk.
type Plane struct {
	config    Config
	authority *pki.Authority
}

// Users of the control plane, as its authorizers know them.
const (
	admin             = "admin"
	controllerManager = "kube-controller-manager"
	scheduler         = "kube-scheduler"
)

// The client certificate of the API server for aggregated APIs, and its authority, which must not sign those of users.
const (
	frontProxy          = "front-proxy-client"
	frontProxyAuthority = "front-proxy-ca"
)

// egressConfig is the file of kube-apiserver's egress configuration.
const egressConfig = "egress.yaml"

// Prepare writes the files of a control plane's processes. It retains existing files in the directory, so that a lab can be repaired while
// its parts run.
func Prepare(config Config) (*Plane, error) {
	config.setDefaults()
	if err := config.validate(); err != nil {
		return nil, fmt.Errorf("control plane: %w", err)
	}
	p := &Plane{config: config}
	if err := os.MkdirAll(p.path("pki"), 0o700); err != nil {
		return nil, fmt.Errorf("control plane: %w", err)
	}
	if err := p.writePKI(); err != nil {
		return nil, fmt.Errorf("keys of the control plane: %w", err)
	}
	if err := p.writeEgress(); err != nil {
		return nil, fmt.Errorf("egress configuration of kube-apiserver: %w", err)
	}
	for _, user := range []string{admin, controllerManager, scheduler} {
		pair, err := p.readPair(user)
		if err != nil {
			return nil, fmt.Errorf("keys of the control plane: %w", err)
		}
		kubeconfig, err := p.Kubeconfig(p.URL(), Credentials{Pair: pair})
		if err != nil {
			return nil, err
		}
		if err := writeFile(p.kubeconfigPath(user), kubeconfig); err != nil {
			return nil, fmt.Errorf("kubeconfig of %s: %w", user, err)
		}
	}
	return p, nil
}

// writeEgress writes the configuration that kube-apiserver connects to nodes, pods and services by.
func (p *Plane) writeEgress() error {
	if p.config.Proxy == "" {
		return nil
	}
	return writeFile(p.path(egressConfig), []byte(`apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- name: cluster
  connection:
    proxyProtocol: HTTPConnect
    transport: {uds: {udsName: `+p.config.Proxy+`}}
`))
}

func (p *Plane) writePKI() error {
	authority, err := p.pair("ca", func() (pki.Pair, error) {
		authority, err := pki.New("ovsdn-lab")
		if err != nil {
			return pki.Pair{}, err
		}
		return authority.Pair, nil
	})
	if err != nil {
		return err
	}
	if p.authority, err = pki.Load(authority); err != nil {
		return err
	}
	if _, err := p.pair("service-accounts", pki.NewSigningKey); err != nil {
		return err
	}
	if err := p.writeFrontProxy(); err != nil {
		return err
	}
	// The first address of the service network is the service "kubernetes".
	server := pki.Subject{
		CommonName: "kube-apiserver",
		DNSNames:   []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost"},
		Addresses:  []netip.Addr{p.config.Address, netip.AddrFrom4([4]byte{127, 0, 0, 1}), p.config.ServiceNetwork.Masked().Addr().Next()},
	}
	for name, subject := range map[string]pki.Subject{
		"kube-apiserver":  server,
		"kubelet-client":  {CommonName: "kube-apiserver-kubelet-client", Organizations: []string{"system:masters"}},
		admin:             {CommonName: "admin", Organizations: []string{"system:masters"}},
		controllerManager: {CommonName: "system:kube-controller-manager"},
		scheduler:         {CommonName: "system:kube-scheduler"},
	} {
		if _, err := p.pair(name, func() (pki.Pair, error) { return p.authority.Issue(subject) }); err != nil {
			return err
		}
	}
	return nil
}

func (p *Plane) writeFrontProxy() error {
	pair, err := p.pair(frontProxyAuthority, func() (pki.Pair, error) {
		authority, err := pki.New(frontProxyAuthority)
		if err != nil {
			return pki.Pair{}, err
		}
		return authority.Pair, nil
	})
	if err != nil {
		return err
	}
	authority, err := pki.Load(pair)
	if err != nil {
		return err
	}
	_, err = p.pair(frontProxy, func() (pki.Pair, error) { return authority.Issue(pki.Subject{CommonName: frontProxy}) })
	return err
}

// pair returns the pair of that name, and creates it if it does not exist.
func (p *Plane) pair(name string, make func() (pki.Pair, error)) (pki.Pair, error) {
	pair, err := p.readPair(name)
	if !errors.Is(err, fs.ErrNotExist) {
		return pair, err
	}
	if pair, err = make(); err != nil {
		return pki.Pair{}, err
	}
	return pair, errors.Join(writeFile(p.certPath(name), pair.Cert), writeFile(p.keyPath(name), pair.Key))
}

func (p *Plane) readPair(name string) (pki.Pair, error) {
	cert, err := os.ReadFile(p.certPath(name))
	if err != nil {
		return pki.Pair{}, err
	}
	key, err := os.ReadFile(p.keyPath(name))
	if err != nil {
		return pki.Pair{}, err
	}
	return pki.Pair{Cert: cert, Key: key}, nil
}

// IssueNode makes the key pair of a kubelet, for its API and as the API server's client.
func (p *Plane) IssueNode(name string, addr netip.Addr) (pki.Pair, error) {
	return p.authority.Issue(pki.Subject{
		CommonName: "system:node:" + name, Organizations: []string{"system:nodes"},
		DNSNames: []string{name}, Addresses: []netip.Addr{addr},
	})
}

// Issue makes a client certificate for a user of any name and groups.
func (p *Plane) Issue(user string, groups ...string) (pki.Pair, error) {
	return p.authority.Issue(pki.Subject{CommonName: user, Organizations: groups})
}

// AuthorityPEM is the certificate that signed all others.
func (p *Plane) AuthorityPEM() []byte { return p.authority.Pair.Cert }

// URL is where kube-apiserver listens.
func (p *Plane) URL() string {
	return "https://" + netip.AddrPortFrom(p.config.Address, p.config.Port).String()
}

// Command is the command line of one process.
type Command struct {
	Name string
	Args []string
}

// etcdQuota is the largest size of etcd's database in bytes, the most that etcd recommends. The default of 2 GiB is less than the large objects of some tests.
const etcdQuota = "8589934592"

// Etcd serves on a unix socket, and does not sync to disk.
func (p *Plane) Etcd() Command {
	// The advertised addresses are only names: no client uses them, but etcd requires a port.
	const client, peer = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
	return p.kube("etcd",
		"--name=lab", "--data-dir="+p.path("etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls=unix://"+p.config.etcdSocket(), "--advertise-client-urls="+client,
		"--listen-peer-urls=unix://"+p.path("etcd-peer.sock"), "--initial-advertise-peer-urls="+peer,
		"--initial-cluster=lab="+peer, "--quota-backend-bytes="+etcdQuota,
	)
}

// APIServer requires etcd's socket.
func (p *Plane) APIServer() Command {
	args := []string{
		"--etcd-servers=unix://" + p.config.etcdSocket(),
		"--bind-address=" + p.config.Address.String(), "--secure-port=" + strconv.Itoa(int(p.config.Port)),
		// Start holds the port for it with a socket of its own.
		"--permit-port-sharing=true",
		"--advertise-address=" + p.config.Address.String(),
		"--service-cluster-ip-range=" + p.config.ServiceNetwork.String(),
		"--tls-cert-file=" + p.certPath("kube-apiserver"), "--tls-private-key-file=" + p.keyPath("kube-apiserver"),
		"--client-ca-file=" + p.certPath("ca"),
		"--kubelet-client-certificate=" + p.certPath("kubelet-client"), "--kubelet-client-key=" + p.keyPath("kubelet-client"),
		"--kubelet-certificate-authority=" + p.certPath("ca"), "--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + p.certPath("service-accounts"), "--service-account-signing-key-file=" + p.keyPath("service-accounts"),
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true", "--profiling=false",
		// Aggregated APIs recognize the API server by these.
		"--requestheader-client-ca-file=" + p.certPath(frontProxyAuthority), "--requestheader-allowed-names=" + frontProxy,
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + p.certPath(frontProxy), "--proxy-client-key-file=" + p.keyPath(frontProxy),
	}
	if !p.config.Address.IsLoopback() && !p.config.ClusterIPs {
		// No service proxy translates the cluster IPs of aggregated APIs on this machine, and a proxy needs a node that does. For tests on the loopback interface, the
		// API refuses endpoints there: they use a Service of type ExternalName, which needs no routing.
		args = append(args, "--enable-aggregator-routing=true")
	}
	if p.config.Proxy != "" {
		args = append(args, "--egress-selector-config-file="+p.path(egressConfig))
	}
	if p.config.Address.IsLoopback() {
		// The API refuses loopback addresses in the endpoints of the service "kubernetes".
		args = append(args, "--endpoint-reconciler-type=none")
	}
	return p.kube("kube-apiserver", args...)
}

// ControllerManager leaves the nodes' pod CIDRs alone: they are the network's own business.
func (p *Plane) ControllerManager() Command {
	kubeconfig := p.kubeconfigPath(controllerManager)
	return p.kube(controllerManager,
		"--kubeconfig="+kubeconfig, "--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig,
		"--service-account-private-key-file="+p.keyPath("service-accounts"), "--root-ca-file="+p.certPath("ca"),
		"--use-service-account-credentials=true", "--allocate-node-cidrs=false",
		"--leader-elect=false", "--bind-address=127.0.0.1", "--profiling=false",
	)
}

// Scheduler places pods.
func (p *Plane) Scheduler() Command {
	kubeconfig := p.kubeconfigPath(scheduler)
	return p.kube(scheduler,
		"--kubeconfig="+kubeconfig, "--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig,
		"--leader-elect=false", "--bind-address=127.0.0.1", "--profiling=false",
	)
}

func (p *Plane) kube(component string, args ...string) Command {
	return Command{Name: component, Args: append([]string{p.config.Kube, component}, args...)}
}

// EtcdSocket is where etcd listens.
func (p *Plane) EtcdSocket() string { return p.config.etcdSocket() }

func (p *Plane) path(name string) string           { return filepath.Join(p.config.Dir, name) }
func (p *Plane) certPath(name string) string       { return p.path(filepath.Join("pki", name+".crt")) }
func (p *Plane) keyPath(name string) string        { return p.path(filepath.Join("pki", name+".key")) }
func (p *Plane) kubeconfigPath(user string) string { return p.path(user + ".kubeconfig") }

// writeFile replaces the file in one step, so that a half-written one is never found later.
func writeFile(path string, content []byte) error {
	next := path + ".next"
	if err := os.WriteFile(next, content, 0o600); err != nil {
		return err
	}
	return os.Rename(next, path)
}
