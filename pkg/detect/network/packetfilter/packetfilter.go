// Package packetfilter finds rules of the packet filter that drop packets which Kubernetes needs. The agent's probes do
// not see them: they come from the node itself, whose packets are not forwarded. Reports that the check answers, each with
// the chain and the rule:
//
//   - https://github.com/k3s-io/k3s/issues/1114 and https://github.com/kubernetes/kubernetes/issues/72370: Docker sets the
//     policy of FORWARD to DROP with iptables-nft, and the network plugin accepts its pods in iptables-legacy.
//   - https://github.com/flannel-io/flannel/issues/2055: firewalld with nftables rejects packets to pods after the rules of
//     flannel accepted them.
package packetfilter

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/network"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// packet-filter reads the rules of the kernel's packet filter, which iptables-nft, firewalld and nft write:
//
//	NFT_MSG_GETCHAIN, NFT_MSG_GETRULE and NFT_MSG_GETSETELEM over netlink
//	/proc/net/ip_tables_names, ip6_tables_names: which tables of iptables-legacy there are. Their rules are not read; where
//	there is any but nat, the result is unknown.
//
//	-P FORWARD DROP
//	-A FORWARD -j KUBE-FORWARD
//	-A FORWARD -s 10.244.0.0/16 -j ACCEPT
//	-A FORWARD -j REJECT --reject-with icmp-host-prohibited
//
// linux/netfilter/nf_tables.h, https://wiki.nftables.org/wiki-nftables/index.php/Netfilter_hooks,
// https://kubernetes.io/docs/reference/networking/virtual-ips/.
//
// It does not search for known names. It follows five packets that every node must let through, as far as it
// understands the rules: a new connection of a pod to any address, one from any address to a pod, a query of a pod to
// the cluster's name server before its address is translated, a new connection of the node, and one to kubelet's port;
// those of pods in each family of which pods have addresses, those of the node in the family of its first address. Each
// base chain is evaluated by itself: one chain may drop a packet that another one of the same hook accepted
// (firewalld's, whose priority is after that of iptables).
//
// A rule that it does not understand (sets of addresses, maps, marks, other matches, interfaces that may be a pod's)
// may accept, which makes the effect of later rules uncertain: only a certain drop is reported. So the rules of Calico,
// Cilium, kube-router and Docker raise no finding, unlike a policy DROP that was not opened for pods (Docker, ufw), "-j
// REJECT" before the rules of the network (the default of iptables-services), or firewalld that does not know the pods.
// Marks 0x4000 are taken for kube-proxy's. No program is run, no module loaded; on a node with 10,000 services it costs
// a few dumps of small filter tables.

// New finds rules that certainly drop traffic of pods, services or kubelet.
func New() detect.Check {
	c := &packetFilterCheck{}
	return detect.Check{
		ID:      "packet-filter",
		Domain:  "network",
		Summary: "the packet filter of the node drops traffic of pods, of services or to kubelet",
		Advice: "The message names backend, family, table, chain and rule; `nft list ruleset` shows its context. " +
			"Find the program that created it (firewalld, ufw, iptables-services, Docker's policy DROP) and allow " +
			"pods there: a rule that is deleted by hand is created again. firewalld: `firewall-cmd --permanent " +
			"--zone=trusted --add-source=PODS/16`, `firewall-cmd --permanent --add-port=10250/tcp`, then " +
			"`firewall-cmd --reload`; ufw: `ufw default allow routed`, `ufw allow 10250/tcp`.",
		Doc: detect.Doc{
			Reads: []string{
				"the chains of nf_tables, for IPv4 and IPv6, from the kernel itself, every 5 minutes",
				"/proc/net/{ip,ip6}_tables_names: tables of iptables-legacy, whose rules are not read",
				"kubelet's pods: one pod's address of each family, and their hostPorts; the route to that pod",
			},
			Why: "A rule before those of kube-proxy and of the network plugin cuts off all pods of the node, while " +
				"node and pods look healthy.",
			Faults: []detect.Fault{
				{Reason: "PodTrafficDropped", Severity: finding.Warning,
					When: "a rule or policy drops new connections of or to pods, and no earlier rule may have " +
						"accepted them; those to services may pass"},
				{Reason: "ServiceTrafficDropped", Severity: finding.Warning,
					When: "the same for queries of pods to the cluster's name server, before their address is " +
						"translated (raw, mangle)"},
				{Reason: "NodeTrafficDropped", Severity: finding.Warning,
					When: "the same for all new connections of the node itself"},
				{Reason: "KubeletPortDropped", Severity: finding.Warning,
					When: "the same for connections to kubelet's port: logs, exec and metrics do not work"},
				{Reason: "HostPortShadowsKubelet", Severity: finding.Warning,
					When: "a pod has the hostPort of kubelet, or of its healthz: address translation redirects all " +
						"requests for it to the pod"},
			},
			FalseAlarms: "Rules that are not understood may accept, so rules after them are not evaluated. " +
				"Forwarding is not evaluated where pods bypass the packet filter: with devices of Cilium, of " +
				"Calico's eBPF data plane or of Open vSwitch, and where pods are reached through the uplink or a " +
				"device above it (macvlan, ipvlan). Where iptables-legacy is used (any table but nat), the result is " +
				"unknown: its rules may drop what those of nf_tables let through. `iptables-legacy-save` and " +
				"`ip6tables-legacy-save` show them; a migration to iptables-nft leaves tables that a reboot of the " +
				"node clears. IPv6 is evaluated if pods, the node's first address or the cluster's name server use it.",
		},
		UsesPartly: []host.Setting{host.KubeletAPI, host.KubeletHealthz},
		Every:      5 * time.Minute,
		Policy:     finding.Policy{Raise: finding.Hold{Runs: 2, For: 3 * time.Minute}},
		Run:        c.observe,
	}
}

type packetFilterCheck struct{ kubelet checkkit.KubeletNetwork }

func (c *packetFilterCheck) observe(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	if !checkkit.KubeletInstalled(h) {
		return nil, finding.NotApplicable("no kubelet is installed on this host")
	}
	filter, err := network.ReadPacketFilter(h)
	if err != nil {
		return nil, err
	}
	pods, podsErr := discover.NodePods(ctx, h)
	if errors.Is(podsErr, hosterr.ErrNotConfigured) {
		podsErr = nil
	}
	if podsErr != nil {
		podsErr = fmt.Errorf("pods that may shadow kubelet's port: %w", podsErr)
	}
	port := portOf(h.Paths.KubeletAPI, 10250)
	var results checkkit.Results
	if len(filter.Legacy) > 0 { // a node that uses iptables-legacy: its rules may drop anything
		results.Doubt(finding.Subject{Kind: "packet-filter", Name: "iptables-legacy"}, fmt.Errorf("rules in "+
			"iptables-legacy are not read, and there are tables of it: %s",
			checkkit.Sanitize(strings.Join(filter.Legacy, ", "), 200)))
	}
	reported := map[finding.Subject]bool{}
	for _, sample := range c.samples(h, pods, port) {
		if drop := findDrop(filter, sample.packetSample); drop != nil {
			f := drop.finding(sample)
			results.Add(f, !reported[f.Subject])
			reported[f.Subject] = true
		}
	}
	shadowingPods(&results, pods, port)
	if healthz := portOf(h.Paths.KubeletHealthz, 10248); healthz != port {
		shadowingPods(&results, pods, healthz)
	}
	if podsErr != nil {
		return results.Inconclusive(podsErr)
	}
	return results.Done()
}

// portOf returns the port of one of kubelet's servers.
func portOf(server string, standard uint16) uint16 {
	address, err := url.Parse(server)
	if err != nil {
		return standard
	}
	port, err := strconv.ParseUint(address.Port(), 10, 16)
	if err != nil {
		return standard
	}
	return uint16(port)
}

func (d *packetDrop) finding(sample requiredPacket) finding.Finding {
	name := strings.Join([]string{"nft", d.chain.Family, checkkit.Sanitize(d.chain.Table, 64),
		checkkit.Sanitize(d.chain.Name, 64)}, " ")
	facts := map[string]string{"rule": checkkit.Sanitize(d.rule, 200), "hook": sample.hook}
	if d.count > 0 {
		facts["packets"] = fmt.Sprint(d.count)
	}
	message := fmt.Sprintf("%s drops new %s: %s, and no earlier rule accepts them", name, sample.what, facts["rule"])
	if d.translated && sample.hook == "forward" {
		message += " (those to services and host ports, whose address is translated, may pass)"
	}
	return finding.Finding{
		Subject: finding.Subject{Kind: "packet-filter", Name: name}, Severity: finding.Warning,
		Reason: sample.reason, Message: message, Facts: facts,
	}
}

// shadowingPods finds pods whose hostPort is one of kubelet's: the translation comes before any socket.
func shadowingPods(results *checkkit.Results, pods []corev1.Pod, port uint16) {
	for i := range pods {
		pod := &pods[i]
		if checkkit.PodFinished(pod) || pod.Spec.HostNetwork || !hasHostPort(pod, port) {
			continue
		}
		name := pod.Namespace + "/" + pod.Name
		results.Add(finding.Finding{
			Subject: finding.Subject{Kind: "pod", Name: name, UID: host.NodePodUID(pod)}, Severity: finding.Warning,
			Reason: "HostPortShadowsKubelet",
			Message: fmt.Sprintf("pod %s has hostPort %d, which is kubelet's: requests for kubelet on this node "+
				"reach the pod", name, port),
			Facts: map[string]string{"pods": name, "port": strconv.Itoa(int(port))},
		}, true)
	}
}

func hasHostPort(pod *corev1.Pod, port uint16) bool {
	for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, p := range container.Ports {
			if p.HostPort == int32(port) && (p.Protocol == "" || p.Protocol == corev1.ProtocolTCP) {
				return true
			}
		}
	}
	return false
}
