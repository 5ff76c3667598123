package checks

// linkCoverage is faults of the node's own network: cards, routes, and the kernel's tables.
func linkCoverage() []Coverage {
	return []Coverage{
		{Fault: "the table of tracked connections is full, or loses packets",
			By: []string{"conntrack", "conntrack-full", "conntrack-expectations-full"}},
		{Fault: "the table of neighbours (ARP, NDP) overflows",
			By: []string{"neighbour-table", "neighbour-table-full"}},
		{Fault: "the route cache is full", By: []string{"route-cache-full"}},
		{Fault: "a network card has no link, or flaps", By: []string{"link-state", "nic-link-down"}},
		{Fault: "a link is slower than it was, or in half duplex", By: []string{"link-state"}},
		{Fault: "a network card damages or drops packets", By: []string{"network-errors"}},
		{Fault: "a network card does not send (transmit timeout)", By: []string{"network-errors", "nic-tx-timeout",
			"nic-hang"}},
		{Fault: "a network card, its module or firmware reports an error: power, temperature, health",
			By: []string{"nic-hardware-error"}},
		{Fault: "the cloud's network allowance is used up: bandwidth, packets, connections, link-local",
			By: []string{"nic-allowance"}},
		{Fault: "a bond lost links, has none, or no LACP partner", By: []string{"bonds", "bond-no-link",
			"bond-link-down"}},
		{Fault: "loopback is missing or down", By: []string{"loopback"}},
		{Fault: "the default route is missing or changed", By: []string{"default-route"}},
		{Fault: "another machine has an IPv6 address of this one", By: []string{"ipv6-duplicate-address",
			"duplicate-address"}},
		{Fault: "another machine has an IPv4 address of this one", Not: "the kernel keeps no state of it and nothing " +
			"asks; an ARP probe would send packets, and may make other machines believe that the address moved"},
		{Fault: "MTU mismatch, path MTU black hole, as the node's counters show it", By: []string{"tcp"}},
		{Fault: "TCP retransmits much", By: []string{"tcp"}},
		{Fault: "listening sockets overflow, SYN flood", By: []string{"tcp", "syn-flood"}},
		{Fault: "TCP memory or orphaned sockets are used up", By: []string{"sockets", "tcp", "tcp-memory"}},
		{Fault: "UDP datagrams do not fit into buffers", By: []string{"udp", "sockets"}},
		{Fault: "processors drop packets before any program sees them (softnet backlog)", By: []string{"softnet"}},
		{Fault: "local ports are used up", By: []string{"sockets"}},
		{Fault: "a removed network device is still in use (unregister_netdevice)",
			By: []string{"unregister-netdevice"}},
		{Fault: "an InfiniBand port is down, flaps or damages packets", By: []string{"infiniband"}},
		{Fault: "EFA drops packets or retransmits", By: []string{"infiniband"}},
		{Fault: "ENA resets itself", By: []string{"nic-hang"}},
		{Fault: "veth devices and leases of deleted pods pile up", Not: "inspect finds each of them and names it; a " +
			"number alone says nothing of a node with many pods"},
	}
}
