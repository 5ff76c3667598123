package network

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/netlink"
	"github.com/nodeagent/nodeagent/internal/host/network"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// cni-mtu compares packet sizes along the path of a pod, as the kernel has them (RTM_GETLINK, IFLA_MTU; "ip -d link"):
//
//	2: eth0: <…> mtu 1450 …                                  the uplink, to which the default route leads
//	5: cali7f3a@if3: <…> mtu 1500 … veth … link-netnsid 0    a pod's
//	4: flannel.1: <…> mtu 1450 … vxlan id 1 … dev eth0       the overlay: adds 50 bytes to each packet
//
// rtnetlink(7), RFC 7348 section 4.3, RFC 1191, https://docs.tigera.io/calico/latest/networking/configuring/mtu,
// https://docs.cilium.io/en/stable/network/concepts/routing/. Only certain faults are reported:
//
//	pod's device larger than the largest uplink    each large packet that leaves the cluster needs an ICMP answer to be reduced;
//	                                               where ICMP is filtered, connections hang after the first large answer
//	overlay plus its header larger than its uplink each large packet between nodes is fragmented, or lost with its fragments
//
// Tunnels whose peers are chosen for each packet (Cilium's, whose device has the uplink's MTU on purpose while the
// routes of pods have a smaller one) are not compared.

// CNIMTU finds pods and overlays whose packets are larger than the node can send.
func CNIMTU() detect.Check {
	return detect.Check{
		ID:      "cni-mtu",
		Domain:  "network",
		Summary: "packets of pods are larger than the node can send",
		Advice: "Set the MTU in the network plugin's configuration to that of the smallest uplink minus the " +
			"overlay's header (VXLAN 50, Geneve 50, IP-in-IP 20, WireGuard 60; 20 more over IPv6). Then restart the " +
			"pods: a running pod keeps its MTU. Verify with `ping -M do -s 1422 <pod on another node>`.",
		Doc: detect.Doc{
			Reads: []string{"MTU, kind and lower device of all network devices, and the default routes, from the " +
				"kernel, every 5 minutes"},
			Why: "Small requests pass and large answers do not: connections are established and then hang. It " +
				"follows a change of the node's network and affects all pods of the node.",
			Faults: []detect.Fault{
				{Reason: "PodMTUTooLarge", Severity: finding.Warning,
					When: "a pod's veth, up, has a larger MTU than every uplink"},
				{Reason: "OverlayMTUTooLarge", Severity: finding.Warning,
					When: "the MTU of a tunnel plus its header is larger than the MTU of the device that it sends " +
						"through"},
			},
			FalseAlarms: "Cilium's devices have large MTUs on purpose and are ignored. A pod MTU below that of the " +
				"uplink is slower, but no fault. An uplink that never sends large packets is reported all " +
				"the same.",
		},
		Every:  5 * time.Minute,
		Policy: finding.Policy{Raise: finding.Hold{Runs: 2, For: 3 * time.Minute}},
		Run:    observeMTU,
	}
}

func observeMTU(_ context.Context, h *host.Host) ([]finding.Finding, error) {
	layout, err := network.ReadLayout(h)
	if err != nil {
		return nil, err
	}
	uplink, ok := largestUplink(layout)
	if !ok {
		return nil, finding.NotApplicable("this host has no default route")
	}
	var results checkkit.Results
	results.Add(largePods(layout, uplink))
	for _, d := range layout.Devices {
		results.Add(largeTunnel(layout, d, uplink))
	}
	return results.Done()
}

// largestUplink is the device with the largest MTU to which a default route leads.
func largestUplink(layout netlink.NetworkLayout) (netlink.NetworkDevice, bool) {
	var largest netlink.NetworkDevice
	for _, route := range layout.Defaults {
		if d, ok := layout.Device(route.Device); ok && d.MTU > largest.MTU {
			largest = d
		}
	}
	return largest, largest.MTU > 0
}

// largePods reports all pods' devices in one finding, because they come from one configuration.
func largePods(layout netlink.NetworkLayout, uplink netlink.NetworkDevice) (finding.Finding, bool) {
	var worst netlink.NetworkDevice
	count := 0
	for _, d := range layout.Devices {
		if d.Name == "cilium_host" {
			return finding.Finding{}, false
		}
		if d.Kind != "veth" || !d.Elsewhere || !d.Up || d.MTU <= uplink.MTU || d.Index == uplink.Index {
			continue
		}
		count++
		if d.MTU > worst.MTU {
			worst = d
		}
	}
	return finding.Finding{
		Subject: finding.Subject{Kind: "network-device", Name: uplink.Name}, Severity: finding.Warning,
		Reason: "PodMTUTooLarge",
		Message: fmt.Sprintf("%d pods send packets of up to %d bytes (%s), but the uplink %s takes %d: large answers "+
			"to destinations outside may hang",
			count, worst.MTU, checkkit.Sanitize(worst.Name, 32), checkkit.Sanitize(uplink.Name, 32), uplink.MTU),
		Facts: map[string]string{"mtu": strconv.Itoa(uplink.MTU), "podMTU": strconv.Itoa(worst.MTU),
			"devices": strconv.Itoa(count)},
	}, count > 0
}

// largeTunnel compares a tunnel with the device that carries its packets.
func largeTunnel(layout netlink.NetworkLayout, d, uplink netlink.NetworkDevice) (finding.Finding, bool) {
	header := tunnelHeader(d)
	if header == 0 || !d.Up || d.External || d.Index == uplink.Index {
		return finding.Finding{}, false
	}
	lower := uplink
	if found, ok := layout.Device(d.Lower); ok {
		lower = found
	}
	if lower.Index == d.Index || d.MTU+header <= lower.MTU {
		return finding.Finding{}, false
	}
	return finding.Finding{
		Subject: finding.Subject{Kind: "network-device", Name: d.Name}, Severity: finding.Warning,
		Reason: "OverlayMTUTooLarge",
		Message: fmt.Sprintf("packets of %s (%s, %d bytes) and their header of %d bytes do not fit %s, which takes "+
			"%d: large packets between nodes are fragmented or lost", checkkit.Sanitize(d.Name, 32),
			checkkit.Sanitize(d.Kind, 32), d.MTU, header, checkkit.Sanitize(lower.Name, 32), lower.MTU),
		Facts: map[string]string{"mtu": strconv.Itoa(d.MTU), "header": strconv.Itoa(header), "lower": lower.Name,
			"lowerMTU": strconv.Itoa(lower.MTU)},
	}, true
}

// tunnelHeader returns the least number of bytes that a tunnel adds over IPv4; 0: no tunnel. IPv6 adds 20 more. VXLAN
// and Geneve carry an Ethernet frame: its header 14, their own 8, UDP 8, IPv4 20. WireGuard: 32, UDP 8, IPv4 20.
func tunnelHeader(d netlink.NetworkDevice) int {
	header := map[string]int{"vxlan": 50, "geneve": 50, "ipip": 20, "gre": 24, "wireguard": 60}[d.Kind]
	if header > 0 && d.IPv6 {
		header += 20
	}
	return header
}
