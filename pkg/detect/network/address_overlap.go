package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/detect/network/dns"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// address-overlap compares the addresses that the node needs with those that the cluster gives away:
//
//	node       the uplink's addresses and their networks, the default gateways      RTM_GETADDR, RTM_GETROUTE
//	           the resolvers of kubelet's resolvConf                                "nameserver 10.244.0.2"
//	pods       spec.podCIDRs of the Node: from it the network gives addresses to the pods of this node
//	services   clusterDNS of kubelet's configuration: one address of the range of services
//
// https://kubernetes.io/docs/concepts/cluster-administration/networking/ (ranges must not overlap). An address of the node,
// its gateway or a resolver inside the range of its pods is given to a pod one day, and what is sent there stays on the node.
// A service's address inside the uplink's own network hides the machine that has it.
//
// Only the uplink's addresses count (the devices of the default routes): bridges and tunnels of the network have addresses of
// the pods' range by design. Hourly. The Node is read once a day at most, since podCIDRs never change (once more when the
// last read failed).
//
// Known false alarms: networks whose pods live in the uplink's network (macvlan, cloud networks with ipam of their own) mostly
// have no podCIDRs; one that takes a part of the uplink's network for pods is no fault as long as the node's addresses are
// outside of that part. A clusterDNS that is no service but a server in the node's own network is told as worth knowing.

const (
	addressOverlapID = "address-overlap"
	nodeKeptFor      = 24 * time.Hour
)

// AddressOverlap finds addresses of the node that collide with the ranges of pods and services.
func AddressOverlap() detect.Check {
	c := &addressOverlapCheck{}
	return detect.Check{
		ID:      addressOverlapID,
		Domain:  "network",
		Summary: "addresses of the node lie in the ranges of pods or services",
		Advice: "One of both must move: give the cluster other ranges (kube-controller-manager --cluster-cidr, --service-cluster-ip-range; it takes new nodes), or " +
			"the node another address. `ip route get <address>` shows where this node sends what is meant for it.",
		Doc: detect.Doc{
			Reads: []string{"addresses of the uplinks and default routes, from the kernel", "resolvConf and clusterDNS of kubelet", "spec.podCIDRs of the Node, once a day"},
			Why:   "Two machines with one address: traffic for the gateway, a resolver or another machine ends in a pod or in the rules of a service.",
			Faults: []detect.Fault{
				{Reason: "NodeAddressInPodRange", Severity: finding.Warning, When: "an uplink's address, a gateway or a resolver is inside podCIDRs of this node"},
				{Reason: "ServiceAddressInNodeNetwork", Severity: finding.Info, When: "clusterDNS is inside the network of an uplink's address; only worth knowing, since it may be no service but a server there"},
			},
			FalseAlarms: "Devices of the network itself (cni0, cilium_host …) have pods' addresses by design and are not looked at. Where nothing says what kubelet was told " +
				"(K3s before 1.32), resolvers and services are not looked at.",
		},
		Every: time.Hour,
		Run:   c.look,
	}
}

type addressOverlapCheck struct {
	kubelet checkkit.KubeletNetwork
	read    time.Duration // uptime when the Node was read; 0: never
	ranges  []netip.Prefix
}

// ownAddress is an address that the node needs, and what for.
type ownAddress struct {
	address netip.Addr
	what    string
}

func (c *addressOverlapCheck) look(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	network, err := c.kubelet.Get(h)
	if _, untold := errors.AsType[*finding.NotApplicableError](err); untold && h.Cluster.Node != nil { // of a cluster nevertheless
		network, err = host.KubeletNetwork{}, nil
	}
	if err != nil {
		return nil, err
	}
	layout, err := h.NetworkLayout()
	if err != nil {
		return nil, err
	}
	found := servicesInNetworks(layout, network)
	ranges, err := c.podRanges(ctx, h)
	if errors.Is(err, host.ErrNotConfigured) {
		return found, nil
	}
	if err != nil {
		return found, fmt.Errorf("podCIDRs: %w", err)
	}
	needed, err := ownAddresses(h, layout, network)
	for _, own := range needed {
		for _, r := range ranges {
			if r.Contains(own.address) {
				found = append(found, overlap(own.address, finding.Warning, "NodeAddressInPodRange", fmt.Sprintf("%s %s is inside %s, from which the pods of "+
					"this node get their addresses: what is sent to it may end in a pod", own.what, own.address, r), r))
			}
		}
	}
	return eachOnce(found), err
}

// eachOnce keeps the first finding of each subject: a gateway that is a resolver too is one address.
func eachOnce(found []finding.Finding) []finding.Finding {
	seen := map[finding.Subject]bool{}
	return slices.DeleteFunc(found, func(f finding.Finding) bool {
		twice := seen[f.Subject]
		seen[f.Subject] = true
		return twice
	})
}

func overlap(address netip.Addr, severity finding.Severity, reason, message string, r netip.Prefix) finding.Finding {
	return finding.Finding{
		Check: addressOverlapID, Subject: finding.Subject{Kind: "address", Name: address.String()}, Severity: severity,
		Reason: reason, Message: message, Facts: map[string]string{"range": r.String()},
	}
}

// podRanges returns the ranges of this node's pods. What is known once stays known.
func (c *addressOverlapCheck) podRanges(ctx context.Context, h *host.Host) ([]netip.Prefix, error) {
	now := h.Clock().SinceBoot
	if c.read != 0 && now-c.read < nodeKeptFor {
		return c.ranges, nil
	}
	if h.Cluster.Node == nil {
		return nil, host.ErrNotConfigured
	}
	node, err := h.Cluster.Node(ctx)
	if err != nil {
		return nil, err
	}
	texts := node.Spec.PodCIDRs
	if len(texts) == 0 && node.Spec.PodCIDR != "" {
		texts = []string{node.Spec.PodCIDR}
	}
	var ranges []netip.Prefix
	for _, text := range texts {
		r, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("%q: %w", checkkit.Sanitize(text, 64), err)
		}
		ranges = append(ranges, r.Masked())
	}
	c.read, c.ranges = now, ranges
	return ranges, nil
}

// uplinks lists the devices to which default routes lead, each once.
func uplinks(layout host.NetworkLayout) []host.NetworkDevice {
	var found []host.NetworkDevice
	for _, route := range layout.Defaults {
		d, ok := layout.Device(route.Device)
		if ok && !slices.ContainsFunc(found, func(other host.NetworkDevice) bool { return other.Index == d.Index }) {
			found = append(found, d)
		}
	}
	return found
}

// ownAddresses lists what the node needs to reach, and to be reached.
func ownAddresses(h *host.Host, layout host.NetworkLayout, network host.KubeletNetwork) ([]ownAddress, error) {
	var own []ownAddress
	for _, d := range uplinks(layout) {
		for _, a := range d.Addresses {
			if !a.Addr().IsLinkLocalUnicast() {
				own = append(own, ownAddress{a.Addr(), "the node's address"})
			}
		}
	}
	for _, route := range layout.Defaults {
		if route.Gateway.IsValid() && !route.Gateway.IsLinkLocalUnicast() {
			own = append(own, ownAddress{route.Gateway, "the default gateway"})
		}
	}
	resolvers, err := dns.UpstreamServers(h.Files, network)
	for _, server := range resolvers {
		own = append(own, ownAddress{server, "the resolver"})
	}
	return own, err
}

// servicesInNetworks finds the address of a service in a network that an uplink is part of. The name server on this node
// (NodeLocal DNSCache) has a link-local address, which is no service's.
func servicesInNetworks(layout host.NetworkLayout, network host.KubeletNetwork) []finding.Finding {
	var found []finding.Finding
	for _, text := range network.ClusterDNS[:min(len(network.ClusterDNS), checkkit.MaxNameservers)] {
		service, err := netip.ParseAddr(strings.TrimSpace(text))
		if err != nil || service.IsLinkLocalUnicast() {
			continue
		}
		for _, d := range uplinks(layout) {
			for _, a := range d.Addresses {
				if a.IsSingleIP() || !a.Masked().Contains(service) {
					continue
				}
				found = append(found, overlap(service, finding.Info, "ServiceAddressInNodeNetwork", fmt.Sprintf("the service address %s (clusterDNS) is inside %s, the "+
					"network of the uplink %s: services hide the machines there that have their addresses", service, a.Masked(), checkkit.Sanitize(d.Name, 32)), a.Masked()))
			}
		}
	}
	return found
}
