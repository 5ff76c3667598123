// Package packetfilter finds rules of the packet filter that drop what Kubernetes needs.
package packetfilter

import (
	"context"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// packet-filter reads the rules of the kernel's packet filter, which iptables-nft, firewalld and nft write:
//
//	NFT_MSG_GETCHAIN, NFT_MSG_GETRULE and NFT_MSG_GETSETELEM over netlink
//	/proc/net/ip_tables_names, ip6_tables_names: which tables of iptables-legacy there are. Their rules are not read; where
//	there is any but nat, the check says that it could not tell.
//
//	-P FORWARD DROP
//	-A FORWARD -j KUBE-FORWARD
//	-A FORWARD -s 10.244.0.0/16 -j ACCEPT
//	-A FORWARD -j REJECT --reject-with icmp-host-prohibited
//
// linux/netfilter/nf_tables.h, https://wiki.nftables.org/wiki-nftables/index.php/Netfilter_hooks,
// https://kubernetes.io/docs/reference/networking/virtual-ips/.
//
// It does not look for names that it knows. It follows five packets that every node must let through, as far as the
// rules are understood: a new connection of a pod to anywhere, one from anywhere to a pod, a question of a pod to the
// cluster's name server before its address is translated, one of the node, and one to kubelet's port; those of pods
// in both families of which pods have addresses, those of the node in the family of its first address. Each base
// chain is judged by itself: what one has accepted, another one of the same hook may still drop (firewalld's, whose
// priority is behind that of iptables).
//
// A rule that is not understood (sets of addresses, maps, marks, other matches, interfaces that may be a pod's) may
// accept, so that nothing after it is certain: found is only what certainly drops. So the rules of Calico, Cilium,
// kube-router and Docker raise nothing, while a policy DROP that nobody has opened for pods (Docker, ufw), "-j
// REJECT" before the rules of the network (the default of iptables-services), or firewalld that was not told of pods
// do. No program is run, no module loaded; a node with 10,000 services costs a few dumps of filter tables that are
// small.
//
// Known false alarms: a node on which pods do not pass the packet filter at all. Forwarding is not judged where it
// has devices of Cilium, of Calico's eBPF data plane or of Open vSwitch, nor where the way to the pods is that to
// everywhere (macvlan, SR-IOV). Marks 0x4000 are taken for kube-proxy's.

const packetFilterID = "packet-filter"

// New finds rules that certainly drop the traffic of pods, services or kubelet.
func New() detect.Check {
	c := &packetFilterCheck{}
	return detect.Check{
		ID:      packetFilterID,
		Domain:  "network",
		Summary: "the packet filter of the node drops traffic of pods, of services or to kubelet",
		Advice: "The message names backend, family, table, chain and rule. `nft list ruleset` shows what is around " +
			"it. Find who made it (firewalld, ufw, iptables-services, Docker's policy DROP), and open it for pods " +
			"there; what is deleted by hand comes back. firewalld: `firewall-cmd --permanent --zone=trusted " +
			"--add-source=PODS/16`, `firewall-cmd --permanent --add-port=10250/tcp`, then `firewall-cmd --reload`; " +
			"ufw: `ufw default allow routed`, `ufw allow 10250/tcp`.",
		Doc: detect.Doc{
			Reads: []string{
				"the chains of nf_tables, for IPv4 and IPv6, from the kernel itself, every 5 minutes",
				"/proc/net/{ip,ip6}_tables_names: tables of iptables-legacy, whose rules are not read",
				"kubelet's pods: one pod's address of each family, and their hostPorts; the route to that pod",
			},
			Why: "A rule ahead of those of kube-proxy and of the network cuts off all pods of the node, while node " +
				"and pods look healthy.",
			Faults: []detect.Fault{
				{Reason: "PodTrafficDropped", Severity: finding.Warning, When: "new connections of pods, or to pods, " +
					"meet a rule or policy that drops them, and nothing before may have let them through; those to " +
					"services may pass"},
				{Reason: "ServiceTrafficDropped", Severity: finding.Warning,
					When: "the same for questions of pods to the cluster's name server, before their address is " +
						"translated (raw, mangle)"},
				{Reason: "NodeTrafficDropped", Severity: finding.Warning,
					When: "the same for all new connections of the node itself"},
				{Reason: "KubeletPortDropped", Severity: finding.Warning,
					When: "the same for connections to kubelet's port: logs, exec and metrics do not work"},
				{Reason: "HostPortShadowsKubelet", Severity: finding.Warning,
					When: "a pod has the hostPort of kubelet: its translation of addresses takes all requests that " +
						"are meant for kubelet"},
			},
			FalseAlarms: "Rules that are not understood may accept, and what comes after them is not judged. " +
				"Forwarding is not judged where pods pass by the packet filter: with devices of Cilium, of Calico's " +
				"eBPF data plane or of Open vSwitch, and where pods are reached through the uplink or a device above " +
				"it (macvlan, ipvlan). Where iptables-legacy is used (any table but nat), the check could not tell: " +
				"its rules may drop what those of nf_tables let through. `iptables-legacy-save` and " +
				"`ip6tables-legacy-save` show them; what has moved to iptables-nft leaves tables that a restart of " +
				"the node clears. IPv6 is judged where pods, the node's first address or the cluster's name server have it.",
		},
		Every:    5 * time.Minute,
		Deadline: 10 * time.Second,
		Policy:   finding.Policy{Raise: finding.Hold{Looks: 2, For: 3 * time.Minute}},
		Run:      func(ctx context.Context, h *host.Host) ([]finding.Finding, error) { return c.observe(ctx, h) },
	}
}
