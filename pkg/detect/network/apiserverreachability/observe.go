package apiserverreachability

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/cri"
	"github.com/nodeagent/nodeagent/internal/host/dns"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/network"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// apiserverCheck is the state between runs. All times are since boot; zero: never.
type apiserverCheck struct {
	settings Settings

	kubelet   checkkit.KubeletNetwork
	endpoint  string           // host:port
	addresses []netip.AddrPort // of it
	resolved  time.Duration
	asked     time.Duration // of the last GET /livez
	fault     *finding.Finding

	service         netip.Addr // of kubernetes.default; not valid: not known
	serviceResolved time.Duration
	serviceTried    time.Duration
	serviceErr      error
}

func (c *apiserverCheck) observe(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	if h.Cluster.Endpoint == nil || h.Cluster.Reach == nil {
		return nil, finding.NotApplicable("no Kubernetes on this host")
	}
	endpoint, err := h.Cluster.Endpoint()
	if errors.Is(err, hosterr.ErrNotConfigured) {
		return nil, finding.NotApplicable("nothing on this host names the apiserver")
	}
	if err != nil {
		return nil, fmt.Errorf("where the apiserver is: %w", err)
	}
	if endpoint != c.endpoint {
		c.endpoint, c.addresses, c.resolved, c.asked, c.fault = endpoint, nil, 0, 0, nil
	}
	now := h.Clock().SinceBoot
	if err := c.askEndpoint(ctx, h, now); err != nil {
		return nil, err
	}
	service := finding.Subject{Kind: "service", Name: "default/kubernetes"}
	if c.fault != nil {
		return []finding.Finding{*c.fault},
			finding.Partial(map[finding.Subject]error{service: errors.New(c.fault.Message)})
	}
	c.tryService(ctx, h, now)
	if ctx.Err() != nil {
		return nil, fmt.Errorf("connect to the service kubernetes.default: %w", ctx.Err())
	}
	if c.serviceErr == nil {
		return nil, nil
	}
	return []finding.Finding{{
		Subject: service, Severity: finding.Warning, Reason: "APIServerServiceUnreachable",
		Message: fmt.Sprintf("the apiserver answers at %s, but its service address %s is unreachable on this node "+
			"(%s): check kube-proxy or the network plugin", c.endpoint, c.serviceAddress(),
			checkkit.ErrorText(c.serviceErr)),
		Facts: map[string]string{"address": c.serviceAddress().String(), "endpoint": c.endpoint},
	}}, nil
}

// askEndpoint asks the cheapest source that can tell, and keeps the fault.
func (c *apiserverCheck) askEndpoint(ctx context.Context, h *host.Host, now time.Duration) error {
	if h.Cluster.Answered != nil {
		if ago, ever := h.Cluster.Answered(); ever && ago < apiserverOwnAnswer {
			c.fault = nil
			return nil
		}
	}
	c.resolve(ctx, now)
	ago, received, err := network.LastReceived(h, c.addresses)
	if err == nil && received && ago < apiserverRecent {
		c.fault = nil
		return nil
	}
	blind := err != nil || len(c.addresses) == 0 // then the absence of a connection is no evidence
	if blind && c.fault == nil && c.asked != 0 && now-c.asked < apiserverAskEvery {
		return nil // it answered then
	}
	call, cancel := context.WithTimeout(ctx, c.settings.Timeout)
	defer cancel()
	status, err := h.Cluster.Reach(call)
	if ctx.Err() != nil {
		return fmt.Errorf("ask the apiserver at %s: %w", c.endpoint, ctx.Err())
	}
	c.asked = now
	c.fault = evaluateReach(c.endpoint, status, err)
	return nil
}

// resolve updates the addresses of the endpoint. If it cannot be resolved, the known ones stay.
func (c *apiserverCheck) resolve(ctx context.Context, now time.Duration) {
	if c.resolved != 0 && now-c.resolved < apiserverResolveEvery {
		return
	}
	name, port, err := net.SplitHostPort(c.endpoint)
	number, bad := strconv.ParseUint(port, 10, 16)
	if err != nil || bad != nil {
		return
	}
	call, cancel := context.WithTimeout(ctx, c.settings.Timeout)
	defer cancel()
	addresses, err := cri.LookupAddresses(call, name)
	c.resolved = now
	if err != nil {
		return
	}
	c.addresses = c.addresses[:0]
	for _, address := range addresses[:min(len(addresses), maxDNSNames)] {
		c.addresses = append(c.addresses, netip.AddrPortFrom(address, uint16(number)))
	}
}

// maxDNSNames bounds the addresses of one name.
const maxDNSNames = 64

func (c *apiserverCheck) serviceAddress() netip.AddrPort { return netip.AddrPortFrom(c.service, 443) }

// tryService connects to the service address every few minutes, and in every run while that fails.
func (c *apiserverCheck) tryService(ctx context.Context, h *host.Host, now time.Duration) {
	if c.serviceErr == nil && c.serviceTried != 0 && now-c.serviceTried < serviceTryEvery {
		return
	}
	c.findService(ctx, h, now)
	if !c.service.IsValid() {
		return
	}
	call, cancel := context.WithTimeout(ctx, c.settings.Timeout)
	defer cancel()
	c.serviceTried = now
	c.serviceErr = cri.ConnectTCP(call, c.serviceAddress())
}

// findService asks the cluster's name server for the address of the service. The check dns covers that server.
func (c *apiserverCheck) findService(ctx context.Context, h *host.Host, now time.Duration) {
	every := serviceResolveEvery
	if !c.service.IsValid() {
		every = serviceTryEvery
	}
	if c.serviceResolved != 0 && now-c.serviceResolved < every {
		return
	}
	network, err := c.kubelet.Get(h)
	if err != nil || len(network.ClusterDNS) == 0 || network.ClusterDomain == "" {
		return
	}
	server, err := netip.ParseAddr(network.ClusterDNS[0])
	if err != nil {
		return
	}
	call, cancel := context.WithTimeout(ctx, c.settings.Timeout)
	defer cancel()
	c.serviceResolved = now
	answer, err := dns.AskDNS(call, dns.DNSQuestion{
		Server: netip.AddrPortFrom(server, 53), Protocol: "udp", Name: "kubernetes.default.svc." +
			network.ClusterDomain, IPv6: server.Is6(),
	})
	if err == nil && len(answer.Addresses) > 0 {
		c.service = answer.Addresses[0]
	}
}
