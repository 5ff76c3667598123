package network

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// tcp reads /proc/net/snmp and /proc/net/netstat of the node's network namespace, in pairs of lines:
//
//	Tcp: RtoAlgorithm RtoMin RtoMax MaxConn ActiveOpens … InSegs OutSegs RetransSegs InErrs OutRsts InCsumErrors
//	Tcp: 1 200 120000 -1 51 … 5022 4711 3 0 17 0
//
// https://docs.kernel.org/networking/snmp_counter.html
//
// The counters cover the node's own connections and those of pods on the host's network: kubelet, the runtime, ingress
// controllers. Other pods' connections are counted in their namespaces. All rates are over five minutes.
//
//	RetransSegs/OutSegs     a healthy data centre has below 1 %; at 5 % throughput has collapsed
//	ListenOverflows         a connection was not accepted in time; the client tries again after 1 s, 3 s, 7 s
//	ListenDrops             … for any reason, that one included
//	TCPReqQFullDrop         the queue of half-open connections is full and SYN cookies are off
//	TCPAbortOnMemory        a connection was aborted for lack of memory
//	TCPMemoryPressures      TCP exceeded the pressure threshold of tcp_mem
//	RcvPruned               a packet was dropped because its socket's buffer is full
//	TCPTimeWaitOverflow     a closed connection could not be kept in TIME_WAIT
//	Ip FragFails            a packet that may not be fragmented exceeded the next device's MTU: the sender learns it, if the
//	                        ICMP message gets through; pods' packets count, as the node forwards them
//	TCPMTUPFail             a probe for a larger MTU was lost; only where tcp_mtu_probing is on

// TCP finds connections that lose packets, are not accepted or lack memory.
func TCP() detect.Check {
	c := &countersCheck{window: counterWindow{Span: 5 * time.Minute}}
	return detect.Check{
		ID: "tcp", Domain: "network",
		Summary: "TCP on the node is impaired: packets are lost, connections are not accepted, or memory is short",
		Advice: "Show the counters with `nstat -az | grep -E 'Retrans|Listen|Prune|MTUP|FragFails'`, the " +
			"connections that retransmit with `ss -ti`, and the listening sockets that are full (Recv-Q at Send-Q) " +
			"with `ss -lnt`: make that program accept faster, or raise its backlog and net.core.somaxconn.",
		Doc: detect.Doc{
			Reads: []string{"/proc/net/snmp", "/proc/net/netstat"},
			Why: "Every retransmission delays a request by at least 200 ms, and every connection that is not " +
				"accepted delays it by a second.",
			Faults: faultsOf(tcpRules()),
			FalseAlarms: "A few retransmissions, as after a peer has failed, are below the threshold. Only the " +
				"host's network namespace is counted, and the traffic that it forwards.",
		},
		Every: time.Minute, Deadline: 5 * time.Second,
		Policy: finding.Policy{Clear: finding.Hold{Runs: 2, For: 2 * time.Minute}},
		Run: func(_ context.Context, h *host.Host) ([]finding.Finding, error) {
			counters := map[string]uint64{}
			for _, name := range []string{"/proc/net/snmp", "/proc/net/netstat"} {
				more, err := checkkit.Parse(h.Files, name, parseCounterPairs)
				if err != nil {
					return nil, err
				}
				maps.Copy(counters, more)
			}
			if _, ok := counters["Tcp.RetransSegs"]; !ok {
				return nil, fmt.Errorf("read /proc/net/snmp: no RetransSegs")
			}
			faults := c.evaluate(counters, tcpRules(), h.Clock().SinceBoot)
			faults = slices.DeleteFunc(faults, func(f networkFault) bool { // ListenDrops includes ListenOverflows
				return f.reason == "ListenDrops" && slices.ContainsFunc(faults, func(f networkFault) bool {
					return f.reason == "ListenOverflows"
				})
			})
			return mergeForNode(h, faults, c.facts(tcpRules())), nil
		},
	}
}

// oncePerWindow is a rate that one event in five minutes reaches.
const oncePerWindow = 1.0 / 301

func tcpRules() []rateRule {
	return []rateRule{
		{key: "Tcp.RetransSegs", of: "Tcp.OutSegs", least: 2, share: 0.05, reason: "TCPRetransmitsHigh",
			text: "segments were retransmitted",
			when: "5 % of sent segments are retransmitted, and at least two per second, over 5 minutes"},
		{key: "TcpExt.ListenOverflows", least: 0.2, reason: "ListenOverflows",
			text: "connections were not accepted in time",
			when: "one connection every 5 s is not accepted in time, over 5 minutes"},
		{key: "TcpExt.ListenDrops", least: 0.2, reason: "ListenDrops",
			text: "connections to listening sockets were dropped",
			when: "the same, for another reason than a full queue"},
		{key: "TcpExt.TCPReqQFullDrop", least: 0.2, reason: "SYNQueueFull",
			text: "connections were dropped because too many are half open",
			when: "one connection every 5 s is dropped because too many are half open, over 5 minutes"},
		{key: "TcpExt.TCPAbortOnMemory", least: oncePerWindow, reason: "TCPAbortedForMemory",
			text: "connections were aborted for lack of memory",
			when: "a connection was aborted for lack of memory within 5 minutes"},
		{key: "TcpExt.TCPMemoryPressures", least: oncePerWindow, reason: "TCPMemoryPressure",
			text: "times TCP came under memory pressure", when: "TCP came under memory pressure within 5 minutes"},
		{key: "TcpExt.RcvPruned", least: 1, reason: "ReceiveQueuesPruned",
			text: "packets were dropped because their sockets are full",
			when: "one packet per second is dropped because its socket is full, over 5 minutes"},
		{key: "TcpExt.TCPTimeWaitOverflow", least: 1, reason: "TimeWaitOverflow",
			text: "closed connections were not kept in TIME_WAIT", info: true,
			when: "one closed connection per second is not kept in TIME_WAIT, over 5 minutes"},
		{key: "Ip.FragFails", least: 1, reason: "FragmentationNeeded",
			text: "packets were larger than the next device's MTU", info: true,
			when: "one packet per second exceeds the next device's MTU and may not be fragmented, over 5 minutes"},
		{key: "TcpExt.TCPMTUPFail", least: 0.1, reason: "MTUProbesFail", text: "probes for a larger MTU were lost",
			info: true, when: "one probe for a larger MTU every ten seconds is lost, over 5 minutes"},
	}
}

// evaluate records the counters of the rules, and evaluates them.
func (c *countersCheck) evaluate(counters map[string]uint64, rules []rateRule, up time.Duration) []networkFault {
	values := map[string]uint64{}
	for _, r := range rules {
		for _, key := range []string{r.key, r.of} {
			if value, ok := counters[key]; ok {
				values[key] = value
			}
		}
	}
	c.window.Add(up, values)
	return exceeded(&c.window, rateLeast, rules)
}

// facts returns the rises of the rules' counters within the window.
func (c *countersCheck) facts(rules []rateRule) map[string]string {
	facts := map[string]string{}
	for _, r := range rules {
		if by, _, ok := c.window.Rise(r.key); ok && by > 0 {
			facts[r.key] = fmt.Sprint(by)
		}
	}
	return facts
}
