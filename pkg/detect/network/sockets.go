package network

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/netlink"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// sockets reads /proc/net/sockstat and sockstat6 (TCP6: inuse 3)
//
//	TCP: inuse 41 orphan 0 tw 12 alloc 190 mem 85
//	UDP: inuse 4 mem 2
//
// where mem (pages), alloc and orphan are of all network namespaces together, inuse and tw of the node's own, and the
// limits in /proc/sys/net/ipv4: tcp_mem and udp_mem (three numbers of pages: below the first no pressure, the third
// is the limit), tcp_max_orphans, tcp_max_tw_buckets, ip_local_port_range (32768 60999). tcp_mem, udp_mem and
// tcp_max_orphans exist in the machine's initial network namespace only.
//
// https://docs.kernel.org/networking/ip-sysctl.html, proc_pid_net(5)
//
// A local port can be used for several peers at once, so the ports of the range run out only if almost all of them go
// to one peer. The check counts sockets by sock_diag(7) only if the node has nearly as many connections as ports, and
// at most once in five minutes.

const (
	// socketsNear is the share of a limit from which it is a fault.
	socketsNear = 0.9
	// portsNominate is the share of the local ports above which sockets are counted.
	portsNominate = 0.6
	portsEvery    = 5 * time.Minute
	sysctlIPv4    = "/proc/sys/net/ipv4/"
)

// Sockets finds nodes that run out of socket memory or local ports.
func Sockets() detect.Check {
	c := &socketsCheck{}
	return detect.Check{
		ID: "sockets", Domain: "network",
		Summary: "socket memory, orphaned sockets or local ports run out",
		Advice: "Check the numbers with `ss -s` and `cat /proc/net/sockstat`, and the peers with `ss -tan | awk " +
			"'{print $5}' | sort | uniq -c | sort -rn | head`. Raise net.ipv4.tcp_mem, tcp_max_orphans or " +
			"ip_local_port_range, or make the program that opens so many connections reuse them.",
		Doc: detect.Doc{
			Reads: []string{"/proc/net/{sockstat,sockstat6}",
				"/proc/sys/net/ipv4/{tcp_mem,udp_mem,tcp_max_orphans,tcp_max_tw_buckets,ip_local_port_range}",
				"the table of TCP sockets (sock_diag), only if the node has many"},
			Why: "At its memory limit TCP aborts connections and drops packets of all pods; without a free port the " +
				"node cannot connect to that peer.",
			Faults: []detect.Fault{
				{Reason: "TCPMemoryExhausted", Severity: finding.Warning,
					When: "TCP uses 90 % of tcp_mem's limit, in all network namespaces together"},
				{Reason: "UDPMemoryExhausted", Severity: finding.Warning, When: "UDP uses 90 % of udp_mem's limit"},
				{Reason: "OrphanedSockets", Severity: finding.Warning, When: "90 % of tcp_max_orphans: connections " +
					"that their programs closed and that still have data to send"},
				{Reason: "LocalPortsExhausted", Severity: finding.Warning,
					When: "90 % of the local ports are in use to one peer"},
				{Reason: "TimeWaitFull", Severity: finding.Info, When: "90 % of tcp_max_tw_buckets connections are " +
					"in TIME_WAIT; above the limit they are closed at once, which loses only protection against old " +
					"packets"},
			},
			FalseAlarms: "Ports are counted per peer, since they can be reused for another peer. Pods with their own " +
				"network namespace are not checked.",
		},
		Every:  time.Minute,
		Wakes:  []detect.Wake{checkkit.LogWake("TCP: out of memory"), checkkit.LogWake("orphaned sockets")},
		Policy: finding.Policy{Clear: finding.Hold{Runs: 2, For: time.Minute}},
		Run:    c.observe,
	}
}

type socketsCheck struct {
	busiest netlink.PortUse
	counted time.Duration // since boot, when busiest was found; 0 for never
}

func (c *socketsCheck) observe(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	usage, err := readSockstat(h.Files)
	if err != nil {
		return nil, err
	}
	faults, facts := []networkFault{}, map[string]string{}
	for _, l := range socketLimits() {
		limit, ok, err := readFieldOf(h.Files, l.file, l.column)
		if err != nil {
			return nil, err
		}
		now, known := usage[l.key]
		if !ok || !known || limit == 0 {
			continue
		}
		facts[l.key], facts[l.file] = fmt.Sprint(now), fmt.Sprint(limit)
		share := float64(now) / float64(limit)
		if found, belowRaise := checkkit.Reaches(share, socketsNear); found {
			text := fmt.Sprintf("%s: %d of %d (%s %%)", l.text, now, limit, formatRate(100*share))
			faults = append(faults, networkFault{reason: l.reason, text: text, info: l.info, belowRaise: belowRaise})
		}
	}
	fault, found, err := c.ports(ctx, h, usage)
	if err != nil {
		return nil, err
	}
	if found {
		faults = append(faults, fault)
	}
	return mergeForNode(h, faults, facts), nil
}

// socketLimit is one number of sockstat with the file that holds its limit.
type socketLimit struct {
	key    string
	file   string // below /proc/sys/net/ipv4
	column int
	reason string
	text   string
	info   bool
}

func socketLimits() []socketLimit {
	return []socketLimit{
		{key: "TCP.mem", file: "tcp_mem", column: 2, reason: "TCPMemoryExhausted", text: "pages that TCP uses"},
		{key: "UDP.mem", file: "udp_mem", column: 2, reason: "UDPMemoryExhausted", text: "pages that UDP uses"},
		{key: "TCP.orphan", file: "tcp_max_orphans", reason: "OrphanedSockets", text: "orphaned sockets"},
		{key: "TCP.tw", file: "tcp_max_tw_buckets", reason: "TimeWaitFull", text: "connections in TIME_WAIT",
			info: true},
	}
}

// readFieldOf reads one number of a setting; it returns false if this network namespace has none.
func readFieldOf(files host.Files, name string, column int) (limit uint64, ok bool, err error) {
	text, err := files.Text(sysctlIPv4 + name)
	if err != nil {
		return 0, false, hosterr.Ignore(err, fs.ErrNotExist)
	}
	fields := strings.Fields(text)
	if len(fields) <= column {
		return 0, false, fmt.Errorf("read %s%s: %q: want %d numbers", sysctlIPv4, name,
			checkkit.Sanitize(text, checkkit.MaxName), column+1)
	}
	if limit, err = parseCount(fields[column], 10); err != nil {
		return 0, false, fmt.Errorf("read %s%s: %w", sysctlIPv4, name, err)
	}
	return limit, true, nil
}

// ports evaluates the local ports if they may run out.
func (c *socketsCheck) ports(ctx context.Context, h *host.Host, usage map[string]uint64) (networkFault, bool, error) {
	first, _, err := readFieldOf(h.Files, "ip_local_port_range", 0)
	if err != nil {
		return networkFault{}, false, err
	}
	last, known, err := readFieldOf(h.Files, "ip_local_port_range", 1)
	if err != nil {
		return networkFault{}, false, err
	}
	if !known || first > last || last > 1<<16-1 || h.Network.BusiestPorts == nil {
		return networkFault{}, false, nil
	}
	size := float64(last - first + 1)
	if float64(usage["TCP.inuse"]+usage["TCP6.inuse"]+usage["TCP.tw"]) < portsNominate*size {
		c.counted, c.busiest = 0, netlink.PortUse{}
		return networkFault{}, false, nil
	}
	if up := h.Clock().SinceBoot; c.counted == 0 || up-c.counted >= portsEvery {
		if c.busiest, err = h.Network.BusiestPorts(ctx, uint16(first), uint16(last)); err != nil { //nolint:gosec // bounded above
			return networkFault{}, false, err
		}
		c.counted = up
	}
	share := float64(c.busiest.Count) / size
	found, belowRaise := checkkit.Reaches(share, socketsNear)
	return networkFault{
		reason: "LocalPortsExhausted", belowRaise: belowRaise,
		text: fmt.Sprintf("local ports from %s to %s: %d of %d (%s %%)", c.busiest.Local, c.busiest.Peer,
			c.busiest.Count, uint64(size), formatRate(100*share)),
	}, found, nil
}

// readSockstat returns numbers as "TCP.orphan". A kernel without IPv6 has no sockstat6.
func readSockstat(files host.Files) (map[string]uint64, error) {
	usage := map[string]uint64{}
	for _, name := range []string{"/proc/net/sockstat", "/proc/net/sockstat6"} {
		more, err := checkkit.Parse(files, name, parseSockstat)
		if err != nil && (!errors.Is(err, fs.ErrNotExist) || !strings.HasSuffix(name, "6")) {
			return nil, err
		}
		maps.Copy(usage, more)
	}
	if _, ok := usage["TCP.inuse"]; !ok {
		return nil, fmt.Errorf("read /proc/net/sockstat: no TCP")
	}
	return usage, nil
}

// parseSockstat parses lines that hold a protocol and any number of names with values.
func parseSockstat(text string) (map[string]uint64, error) {
	usage := map[string]uint64{}
	for line := range strings.Lines(text) {
		protocol, rest, ok := strings.Cut(line, ":")
		fields := strings.Fields(rest)
		if !ok || len(fields)%2 != 0 {
			return nil, checkkit.InLine(line, errors.New("want names and values"))
		}
		for i := 0; i < len(fields); i += 2 {
			value, err := parseCount(fields[i+1], 10)
			if err != nil {
				return nil, checkkit.InLine(line, err)
			}
			usage[protocol+"."+fields[i]] = value
		}
	}
	return usage, nil
}
