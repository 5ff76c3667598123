package network

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// udp reads /proc/net/snmp (see tcp) and /proc/net/snmp6, a name and a value in each line:
//
//	Udp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors InCsumErrors IgnoredMulti MemErrors
//	Udp6RcvbufErrors                	0
//
// https://docs.kernel.org/networking/snmp_counter.html
//
// RcvbufErrors are datagrams that a program of the node did not read in time: a name server, a metrics receiver.
// MemErrors are datagrams for which udp_mem had no memory left. Rates are over five minutes, IPv4 and IPv6 together.

// UDP finds datagrams that the node loses.
func UDP() detect.Check {
	c := &countersCheck{window: counterWindow{Span: 5 * time.Minute}}
	return detect.Check{
		ID: "udp", Domain: "network",
		Summary: "the node loses UDP datagrams: programs do not read them in time, or buffers are too small",
		Advice: "`ss -uanm` shows which socket is full (Recv-Q) and what it dropped (d…). Make that program read " +
			"faster, or raise net.core.rmem_max and its buffer. For checksum errors check the card: if `ethtool -K X " +
			"rx off` ends them, its offload is faulty.",
		Doc: detect.Doc{
			Reads:  []string{"/proc/net/snmp", "/proc/net/snmp6"},
			Why:    "A lost DNS answer costs a pod five seconds.",
			Faults: faultsOf(udpRules()),
			FalseAlarms: "Programs that tolerate losing datagrams (a discovery service) are reported too. Sockets of " +
				"pods with their own network namespace are not checked.",
		},
		Every: time.Minute, Deadline: 5 * time.Second,
		Policy: finding.Policy{Clear: finding.Hold{Runs: 2, For: 2 * time.Minute}},
		Run: func(_ context.Context, h *host.Host) ([]finding.Finding, error) {
			counters, err := readUDP(h.Files)
			if err != nil {
				return nil, err
			}
			return mergeForNode(h, c.evaluate(counters, udpRules(), h.Clock().SinceBoot), c.facts(udpRules())),
				nil
		},
	}
}

func udpRules() []rateRule {
	return []rateRule{
		{key: "Udp.RcvbufErrors", of: "Udp.InDatagrams", least: 1, share: 0.001, reason: "UDPReceiveBufferErrors",
			text: "datagrams were not read in time",
			when: "one datagram per second, and 0.1 % of all, does not fit into its socket's buffer, over 5 minutes"},
		{key: "Udp.SndbufErrors", of: "Udp.OutDatagrams", least: 1, share: 0.001, reason: "UDPSendBufferErrors",
			text: "datagrams did not fit into the send buffer", when: "the same for datagrams to be sent"},
		{key: "Udp.InCsumErrors", least: 1, reason: "UDPChecksumErrors", text: "received datagrams were damaged",
			when: "one received datagram per second is damaged, over 5 minutes"},
		{key: "Udp.MemErrors", least: oncePerWindow, reason: "UDPMemoryExhausted",
			text: "datagrams were dropped for lack of memory",
			when: "a datagram was dropped within 5 minutes because udp_mem is exhausted"},
	}
}

func readUDP(files host.Files) (map[string]uint64, error) {
	counters, err := checkkit.Parse(files, "/proc/net/snmp", parseCounterPairs)
	if err != nil {
		return nil, err
	}
	if _, ok := counters["Udp.RcvbufErrors"]; !ok {
		return nil, fmt.Errorf("read /proc/net/snmp: no RcvbufErrors")
	}
	six, err := checkkit.ReadCounts(files, "/proc/net/snmp6")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for name, value := range six {
		if name, ok := strings.CutPrefix(name, "Udp6"); ok {
			counters["Udp."+name] += value
		}
	}
	return counters, nil
}
