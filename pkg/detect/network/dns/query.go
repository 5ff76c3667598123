package dns

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/dns"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// dnsServer is one server that pods use.
type dnsServer struct {
	Address  netip.Addr
	Upstream bool // of the node's resolvConf, not of the cluster
}

// dnsHistory is the state of a server between runs. Times are since boot.
type dnsHistory struct {
	silent   time.Duration // since when it has not answered; 0: it does
	tcpAsked time.Duration
	tcpErr   error
}

// serverResult is the outcome of one server's queries in one run.
type serverResult struct {
	Server  dnsServer
	Answer  dns.DNSAnswer
	Err     error // over UDP
	TCPErr  error // nil also if it was not queried
	TCP     bool  // an answer over TCP is known
	Silence time.Duration
}

type dnsCheck struct {
	settings Settings
	kubelet  checkkit.KubeletNetwork
	servers  map[dnsServer]*dnsHistory
}

func (c *dnsCheck) observe(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	network, err := c.kubelet.Get(h)
	if err != nil {
		return nil, err
	}
	servers, unknown := dnsServers(h.Files, network)
	if len(servers) == 0 && len(unknown) == 0 {
		return nil, finding.NotApplicable("kubelet has no name server for pods")
	}
	now := h.Clock().SinceBoot
	seen := c.query(ctx, servers, network.ClusterDomain, now)
	if ctx.Err() != nil {
		return nil, fmt.Errorf("query the name servers of pods: %w", ctx.Err())
	}
	return c.evaluate(seen, network), finding.Partial(unknown)
}

// dnsServers lists the servers of pods.
func dnsServers(files host.Files, network discover.KubeletNetwork) (servers []dnsServer,
	unknown map[finding.Subject]error) {
	for _, address := range checkkit.ClusterServers(network) {
		servers = append(servers, dnsServer{Address: address})
	}
	upstream, err := upstreamServers(files, network)
	if err != nil {
		return servers, map[finding.Subject]error{{Kind: "file", Name: network.ResolvConf}: err}
	}
	for _, address := range upstream {
		if !slices.Contains(servers, dnsServer{Address: address}) {
			servers = append(servers, dnsServer{Address: address, Upstream: true})
		}
	}
	return servers, nil
}

// upstreamServers reads the resolvers that kubelet gives pods with dnsPolicy Default. Only a file that kubelet's
// configuration names must exist.
func upstreamServers(files host.Files, network discover.KubeletNetwork) ([]netip.Addr, error) {
	if network.ResolvConf == "" {
		return nil, nil
	}
	data, err := files.Read(network.ResolvConf)
	if errors.Is(err, fs.ErrNotExist) && network.ResolvConf == "/etc/resolv.conf" {
		return nil, nil
	}
	return parseNameservers(string(data)), err
}

// parseNameservers reads the first servers of a resolv.conf(5). Malformed lines are skipped, as libc does.
func parseNameservers(text string) []netip.Addr {
	var servers []netip.Addr
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != "nameserver" || len(servers) == checkkit.MaxNameservers {
			continue
		}
		if address, err := netip.ParseAddr(fields[1]); err == nil && !slices.Contains(servers, address) {
			servers = append(servers, address)
		}
	}
	return servers
}

// query queries all servers in parallel, so that a silent one costs its own time only.
func (c *dnsCheck) query(ctx context.Context, servers []dnsServer, domain string, now time.Duration) []serverResult {
	for server := range c.servers {
		if !slices.Contains(servers, server) {
			delete(c.servers, server)
		}
	}
	for _, server := range servers {
		if c.servers[server] == nil {
			c.servers[server] = &dnsHistory{}
		}
	}
	seen := make([]serverResult, len(servers))
	var all sync.WaitGroup
	for i, server := range servers {
		all.Go(func() { seen[i] = c.queryOne(ctx, server, c.servers[server], domain, now) })
	}
	all.Wait()
	return seen
}

// queryOne queries one server. No other goroutine changes the server's history.
func (c *dnsCheck) queryOne(ctx context.Context, server dnsServer, history *dnsHistory, domain string,
	now time.Duration) serverResult {
	seen := serverResult{Server: server}
	query := c.newQuery(server, domain)
	for range 2 {
		if seen.Answer, seen.Err = c.try(ctx, query); seen.Err == nil || !checkkit.IsTimeout(seen.Err) {
			break
		}
	}
	if !server.Upstream && (seen.Err != nil || history.tcpErr != nil || history.tcpAsked == 0 ||
		now-history.tcpAsked >= dnsTCPEvery) {
		query.Protocol = "tcp"
		_, history.tcpErr = c.try(ctx, query)
		history.tcpAsked = now
	}
	seen.TCP, seen.TCPErr = history.tcpAsked != 0 && history.tcpErr == nil, history.tcpErr
	if seen.Err == nil || seen.TCP {
		history.silent = 0
		return seen
	}
	if history.silent == 0 {
		history.silent = now
	}
	seen.Silence = now - history.silent
	return seen
}

func (c *dnsCheck) newQuery(server dnsServer, domain string) dns.DNSQuestion {
	q := dns.DNSQuestion{
		Server: netip.AddrPortFrom(server.Address, 53), Protocol: "udp", Name: "localhost",
		IPv6: server.Address.Is6() && !server.Address.Is4In6(),
	}
	switch {
	case server.Upstream && c.settings.UpstreamName != "":
		q.Name, q.IPv6 = c.settings.UpstreamName, false
	case !server.Upstream:
		q.Name = "kubernetes.default.svc." + domain
	}
	return q
}

func (c *dnsCheck) try(ctx context.Context, query dns.DNSQuestion) (dns.DNSAnswer, error) {
	ctx, cancel := context.WithTimeout(ctx, c.settings.Timeout)
	defer cancel()
	return dns.AskDNS(ctx, query)
}
