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

// conntrack reads /proc/sys/net/netfilter/nf_conntrack_count and nf_conntrack_max (0: no limit), both of the node's own
// network namespace, and /proc/net/stat/nf_conntrack, hexadecimal, a line for each processor:
//
//	entries  clashres found    new      invalid  ignore   delete   chainlength insert insert_failed drop     early_drop …
//	00000001 00000000 00000000 00000000 000001a6 00000000 00000000 00000000    00000000 00000000  00000000 00000000
//
// When the table is full the kernel drops another entry early (early_drop) or the packet (drop). insert_failed is a
// packet lost because two connections were given the same addresses and ports. drop also counts packets of clashes, so
// it matters only while the table is full.
//
// https://docs.kernel.org/networking/nf_conntrack-sysctl.html, net/netfilter/nf_conntrack_core.c
//
// node-problem-detector reports 90 %, the Prometheus node mixin 75 %. Here 90 % is a warning. A table that is full (95
// %) and drops packets is fatal: no new connection is possible, not even kubelet's to the apiserver.

const (
	conntrackNear    = 0.9 // of the limit; kept above conntrackClear
	conntrackClear   = 0.8
	conntrackFull    = 0.95
	conntrackClashes = 1 // failed insertions per second, over five minutes
)

// Conntrack finds a full connection tracking table.
func Conntrack() detect.Check {
	c := &conntrackCheck{recent: counterWindow{Span: time.Minute}, rates: counterWindow{Span: 5 * time.Minute}}
	return detect.Check{
		ID: "conntrack", Domain: "network",
		Summary: "the connection tracking table is full or nearly full, or loses packets",
		Advice: "`conntrack -S` and `conntrack -L | awk '{print $1,$4}' | sort | uniq -c | sort -rn | head` show " +
			"what fills the table. Raise net.netfilter.nf_conntrack_max (kube-proxy: --conntrack-max-per-core), " +
			"shorten the timeouts of UDP and TIME_WAIT, or fix the client that opens so many connections. For failed " +
			"insertions of DNS use NodeLocal DNSCache or DNS over TCP.",
		Doc: detect.Doc{
			Reads: []string{"/proc/sys/net/netfilter/nf_conntrack_{count,max}", "/proc/net/stat/nf_conntrack"},
			Why: "While the table is full, packets of new connections are dropped: services, DNS and kubelet's own " +
				"requests fail.",
			Faults: []detect.Fault{
				{Reason: "ConntrackFull", Severity: finding.Fatal, When: "above 95 % of the limit while packets are " +
					"dropped, in two runs over 20 s: no new connection is possible. A warning while the kernel can " +
					"evict other entries instead"},
				{Reason: "ConntrackNearlyFull", Severity: finding.Warning,
					When: "above 90 % of the limit, until below 80 %"},
				{Reason: "ConntrackInsertFailed", Severity: finding.Warning,
					When: "one packet per second, over 5 minutes, is lost because its connection clashed with " +
						"another one: the known race of DNS over UDP behind kube-proxy"},
			},
			FalseAlarms: "Only the table of the host's network namespace is checked; a pod that fills its own " +
				"affects only itself. A short burst that fills the table is not reported.",
		},
		Condition:    detect.NetworkProblem(),
		CounterBased: true,
		Every:        30 * time.Second, Deadline: 5 * time.Second,
		Wakes: []detect.Wake{checkkit.KernelWake()},
		Policy: finding.Policy{Raise: finding.Hold{Runs: 2, For: 20 * time.Second},
			Clear: finding.Hold{Runs: 2, For: 30 * time.Second}},
		Run: c.observe,
	}
}

type conntrackCheck struct {
	recent counterWindow // packets dropped now
	rates  counterWindow
}

func (c *conntrackCheck) observe(_ context.Context, h *host.Host) ([]finding.Finding, error) {
	count, err := checkkit.ReadCount(h.Files, "/proc/sys/net/netfilter/nf_conntrack_count")
	if err != nil {
		return nil, checkkit.UnlessAbsent(err, "the kernel does not track connections")
	}
	limit, err := checkkit.ReadCount(h.Files, "/proc/sys/net/netfilter/nf_conntrack_max")
	if err != nil {
		return nil, err
	}
	stat, err := readPerCPU(h.Files, "/proc/net/stat/nf_conntrack")
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // CONFIG_NF_CONNTRACK_PROCFS
		return nil, err
	}
	up := h.Clock().SinceBoot
	// Each window needs its own map: it deletes counters that were reset.
	c.recent.Add(up, map[string]uint64{"drop": stat.Sum["drop"], "early": stat.Sum["early_drop"]})
	c.rates.Add(up, map[string]uint64{"clash": stat.Sum["insert_failed"]})
	f, found := c.evaluate(count, limit)
	if !found {
		return nil, nil
	}
	f.Subject = checkkit.NodeSubject(h)
	return []finding.Finding{f}, nil
}

func (c *conntrackCheck) evaluate(count, limit uint64) (finding.Finding, bool) {
	f := finding.Finding{
		Severity: finding.Warning,
		Facts:    map[string]string{"count": fmt.Sprint(count), "max": fmt.Sprint(limit)},
	}
	share := 0.0
	if limit > 0 {
		share = float64(count) / float64(limit)
	}
	dropped, _, _ := c.recent.Rise("drop")
	early, _, _ := c.recent.Rise("early")
	clash, clashes := rateRule{key: "clash", least: conntrackClashes,
		text: "packets were lost because their connections clashed with others"}.exceeds(&c.rates, rateLeast)
	var texts []string
	if share >= conntrackClear {
		texts = append(texts, fmt.Sprintf("%d of %d connections are tracked (%s %%)", count, limit,
			formatRate(100*share)))
	}
	switch {
	case share >= conntrackFull && dropped > 0:
		f.Severity, f.Reason = finding.Fatal, "ConntrackFull"
		texts = append(texts, fmt.Sprintf("%d packets were dropped within a minute", dropped))
	case share >= conntrackFull && early > 0:
		f.Reason = "ConntrackFull"
		texts = append(texts, fmt.Sprintf("%d connections were dropped within a minute to make room", early))
	case share >= conntrackClear && (share >= conntrackNear || !clashes):
		f.Reason, f.BelowRaise = "ConntrackNearlyFull", share < conntrackNear
	case clashes:
		f.Reason, f.BelowRaise = "ConntrackInsertFailed", clash.belowRaise
	default:
		return f, false
	}
	if clashes {
		texts = append(texts, clash.text)
	}
	f.Message = strings.Join(texts, "; ")
	return f, true
}
