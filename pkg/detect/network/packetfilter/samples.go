package packetfilter

import (
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"syscall"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
)

// requiredPacket is a packet with the reason to report when it is dropped.
type requiredPacket struct {
	packetSample
	reason string
}

const (
	ipv4 = "ip" // names of nf_tables
	ipv6 = "ip6"
)

// samples returns the packets that this node must let through.
func (c *packetFilterCheck) samples(h *host.Host, pods []corev1.Pod, kubeletPort uint16) []requiredPacket {
	const tcp, udp = 6, 17
	node, bypassed := nodeFamily(h, pods), bypassesNetfilter(h)
	var servers []netip.Addr
	if network, err := c.kubelet.Get(h); err == nil {
		servers = checkkit.ClusterServers(network)
	}
	var samples []requiredPacket
	for _, family := range []string{ipv4, ipv6} {
		add := func(reason string, s packetSample) {
			s.family = family
			if family == ipv6 {
				s.what = "IPv6 " + s.what
			}
			samples = append(samples, requiredPacket{s, reason})
		}
		if node == family {
			add("NodeTrafficDropped", packetSample{hook: "output", protocol: tcp,
				what: "connections of the node itself"})
			add("KubeletPortDropped", packetSample{hook: "input", protocol: tcp, port: kubeletPort,
				what: "connections to kubelet's port " + strconv.Itoa(int(kubeletPort))})
		}
		pod, device, certain := podBehind(h, pods, family)
		if certain && !bypassed {
			add("PodTrafficDropped", packetSample{hook: "forward", source: pod, in: device, protocol: tcp,
				what: "connections of pods"})
			add("PodTrafficDropped", packetSample{hook: "forward", destination: pod, out: device, protocol: tcp,
				what: "connections to pods"})
		}
		for _, server := range servers {
			if familyOf(server) == family {
				add("ServiceTrafficDropped", packetSample{
					hook: "prerouting", source: pod, destination: server, protocol: udp, port: 53,
					what: "queries of pods to the cluster's name server " + server.String(),
				})
				break
			}
		}
	}
	return samples
}

func familyOf(address netip.Addr) string {
	if address.Is4() {
		return ipv4
	}
	return ipv6
}

// nodeFamily returns the family of the node's first address, by which the cluster reaches it. If no pod shows it, the
// node is IPv6 only if IPv6 alone has a route out.
func nodeFamily(h *host.Host, pods []corev1.Pod) string {
	for i := range pods {
		if address, err := netip.ParseAddr(pods[i].Status.HostIP); err == nil {
			return familyOf(address)
		}
	}
	if h.Network.RouteDevice != nil {
		_, err4 := h.Network.RouteDevice(outsideAddress(ipv4))
		_, err6 := h.Network.RouteDevice(outsideAddress(ipv6))
		if errors.Is(err4, syscall.ENETUNREACH) && err6 == nil {
			return ipv6
		}
	}
	return ipv4
}

// outsideAddress returns an address to which only the default route leads: one reserved for documentation (RFC 5737,
// RFC 3849).
func outsideAddress(family string) netip.Addr {
	if family == ipv6 {
		return netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8})
	}
	return netip.AddrFrom4([4]byte{192, 0, 2, 1})
}

// bypassesNetfilter reports whether this node has devices by which packets of pods bypass the packet filter: Cilium's,
// those of Calico's eBPF data plane, and Open vSwitch.
func bypassesNetfilter(h *host.Host) bool {
	names, err := h.Files.List("/sys/class/net")
	return err == nil && slices.ContainsFunc([]string{"cilium_host", "bpfout.cali", "ovs-system"},
		func(name string) bool { return slices.Contains(names, name) })
}

// maxPodsAsked is how many pods are tried to find one whose device is known.
const maxPodsAsked = 8

// podBehind returns the address of a pod with its own network namespace, and the device of the node that leads to it.
// It is not certain that packets of pods pass the packet filter if pods have no such address, or are reached through
// the uplink, or through a device above another one (macvlan, ipvlan).
func podBehind(h *host.Host, pods []corev1.Pod, family string) (pod netip.Addr, device string, certain bool) {
	addresses := podAddresses(pods)
	if len(addresses) == 0 { // none runs, or kubelet does not report it
		return netip.Addr{}, "", family == ipv4 && nodeFamily(h, pods) == ipv4
	}
	addresses = slices.DeleteFunc(addresses, func(a netip.Addr) bool { return familyOf(a) != family })
	if len(addresses) == 0 {
		return netip.Addr{}, "", false
	}
	if h.Network.RouteDevice == nil {
		return addresses[0], "", true
	}
	uplink, _ := h.Network.RouteDevice(outsideAddress(family)) // empty: no default route
	for _, address := range addresses[:min(len(addresses), maxPodsAsked)] {
		if device, err := h.Network.RouteDevice(address); err == nil && device != uplink && device != "lo" &&
			!aboveAnother(h, device) {
			return address, device, true
		}
	}
	return addresses[0], "", false
}

// podAddresses returns those of pods that run in their own network namespace.
func podAddresses(pods []corev1.Pod) []netip.Addr {
	var addresses []netip.Addr
	for i := range pods {
		if pods[i].Spec.HostNetwork || checkkit.PodFinished(&pods[i]) {
			continue
		}
		for _, ip := range pods[i].Status.PodIPs {
			if address, err := netip.ParseAddr(ip.IP); err == nil {
				addresses = append(addresses, address)
			}
		}
	}
	return addresses
}

// aboveAnother reports whether a device is created on top of another one and is no bridge.
func aboveAnother(h *host.Host, device string) bool {
	names, err := h.Files.List("/sys/class/net/" + device)
	return err != nil || !slices.Contains(names, "bridge") && slices.ContainsFunc(names, func(name string) bool {
		return strings.HasPrefix(name, "lower_")
	})
}
