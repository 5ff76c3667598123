package checks

func clusterNetworkCoverage() []Coverage {
	return []Coverage{
		{Fault: "DNS of the cluster, or the node's resolvers, do not answer pods", By: []string{"dns"}},
		{Fault: "apiserver cannot be reached from the node", By: []string{"apiserver-reachability"}},
		{Fault: "service addresses lead nowhere on this node", By: []string{"apiserver-reachability", "dns"}},
		{
			Fault: "iptables-legacy and nf_tables are mixed",
			Not: "iptables of RHEL 8, Debian 10, Ubuntu 20.10 and later writes to nf_tables; rules in " +
				"iptables-legacy are not read; where there are tables of it, packet-filter says that it could not " +
				"tell, and names them",
		},
		{Fault: "unexpected REJECT or DROP ahead of kube-proxy or the network", By: []string{"packet-filter"}},
		{Fault: "a hostPort takes kubelet's port", By: []string{"packet-filter"}},
		{Fault: "kube-proxy does not run or does not sync", By: []string{"kube-proxy"}},
		{Fault: "IPVS rules are broken", By: []string{"kube-proxy", "apiserver-reachability"}},
		{Fault: "CNI configuration or plugins are missing or malformed", By: []string{"cni-config", "runtime-health"}},
		{Fault: "the network plugin's daemon is down", By: []string{"critical-daemonsets", "cni-config"}},
		{Fault: "MTU of pods or of the overlay is larger than the uplink's", By: []string{"cni-mtu"}},
		{
			Fault: "addresses of the node lie in the ranges of pods or services",
			Not: "a mistake in planning the cluster, where its ranges are known: a node knows only the part that its " +
				"own pods get, and a network with an IPAM of its own does not even use that, so nearly all real " +
				"overlaps are out of its sight",
		},
		{
			Fault: "no more addresses for pods (IPAM exhausted)",
			Not: "each network keeps its own books, some in the cloud; pods that wait for an address are stuck in " +
				"ContainerCreating with the network's own words in the event",
		},
		{
			Fault: "books of the IPAM differ from what runs (leaked addresses)",
			Not: "a leftover and no fault: nodeagent inspect lists leases and attachments of pods that are gone, " +
				"and can release them",
		},
		{
			Fault: "rules or routes of a pod's address are missing (VPC CNI)",
			Not: "only that network's daemon knows which there should be, and it repairs them itself; a pod that " +
				"cannot be reached fails its probes",
		},
		{
			Fault: "MACAddressPolicy of systemd changes the addresses of pods' devices",
			Not: "concerns one network plugin on some distributions, which newer versions of it work around; a " +
				"plugin can compare the files",
		},
		{
			Fault: "egress to the outside is blocked",
			Not: "which addresses a node must reach is known to its owner only, and the agent connects to nothing outside " +
				"of the cluster; a plugin can try them, dns has upstreamName",
		},
		{
			Fault: "maintenance announced by the cloud",
			Not: "each cloud's metadata service reports it in its own way, which must be polled and is often " +
				"closed to pods; the clouds' own termination handlers drain the node, and two that do so would be in " +
				"each other's way",
		},
	}
}
