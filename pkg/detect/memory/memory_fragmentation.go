package memory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// memory-fragmentation reads
//
//	/proc/buddyinfo   Node 0, zone   Normal   4948   7734   5889   4143   2469   1321   1849   1338    906    748   3967
//	                  free blocks of 1, 2, 4 … pages, by zone of each NUMA node
//	/proc/vmstat      compact_fail 5       how often the kernel could not join pages for a request, since boot
//
// https://docs.kernel.org/filesystems/proc.html (buddyinfo), https://docs.kernel.org/admin-guide/sysctl/vm.html
// (extfrag_threshold). The kernel's unusable free space index is, for blocks of 16 pages, the share of free memory in
// smaller ones. The kernel tries hard to serve requests for up to 8 pages (PAGE_ALLOC_COSTLY_ORDER); if almost no block
// of 16 pages is left, those are the next to fail: rings and buffers of network cards, iptables rules, page tables. The
// zone DMA (16 MiB for ancient devices) does not count.

const (
	fragmentedAt        = 99 // percent of free memory in blocks of fewer than 16 pages
	fragmentedKeep      = 95
	fragmentedOrder     = 4
	compactionFailedFor = 10 * time.Minute // how long a failed compaction counts
)

// MemoryFragmentation finds nodes whose free memory is in pieces too small for the kernel.
func MemoryFragmentation() detect.Check {
	m := &fragmentation{}
	return detect.Check{
		ID: "memory-fragmentation", Domain: "memory",
		Summary: "free memory is fragmented into blocks too small for the kernel, and compaction fails",
		Advice: "`echo 1 > /proc/sys/vm/compact_memory` compacts what it can, at the cost of some stalls; a larger " +
			"vm.min_free_kbytes keeps more free for the kernel. If the fault comes back, check what holds kernel " +
			"memory: slab-leak, dying-cgroups.",
		Doc: detect.Doc{
			Reads: []string{"/proc/buddyinfo", "/proc/vmstat"},
			Why: "When the kernel finds no contiguous memory, network cards drop packets, containers fail to start " +
				"and iptables rules fail to load.",
			Faults: []detect.Fault{{Reason: "MemoryFragmented", Severity: finding.Warning,
				When: "99 % of the free memory of a NUMA node is in blocks of fewer than 16 pages, and compaction " +
					"failed within 10 minutes; for 5 minutes. Cleared at 95 %"}},
			FalseAlarms: "If there is little free memory, it is in small blocks for that reason: memory-available " +
				"then names the cause. Small blocks alone, and compaction that fails for huge pages only, are not " +
				"reported.",
		},
		Every: time.Minute, Deadline: 5 * time.Second,
		Policy: finding.Policy{Raise: finding.Hold{Runs: 3, For: 5 * time.Minute},
			Clear: finding.Hold{Runs: 3, For: 3 * time.Minute}},
		Run: m.run,
	}
}

// fragmentation records when compaction failed.
type fragmentation struct {
	counted  bool
	fails    uint64        // compact_fail in the last run
	failedAt time.Duration // uptime of the last run that found it higher; 0 for none
}

func (m *fragmentation) run(_ context.Context, h *host.Host) ([]finding.Finding, error) {
	stat, err := checkkit.ReadCounts(h.Files, "/proc/vmstat")
	if err != nil {
		return nil, err
	}
	fails, ok := stat["compact_fail"]
	if !ok {
		return nil, finding.NotApplicable("the kernel does not compact memory (CONFIG_COMPACTION)")
	}
	now := h.Clock().SinceBoot
	if m.counted && fails > m.fails {
		m.failedAt = now
	}
	m.counted, m.fails = true, fails
	nodes, err := checkkit.Parse(h.Files, "/proc/buddyinfo", parseBuddyinfo)
	if err != nil || m.failedAt == 0 || now-m.failedAt > compactionFailedFor {
		return nil, err
	}
	var findings []finding.Finding
	for _, n := range nodes {
		if n.unusable() >= fragmentedKeep {
			findings = append(findings, n.finding())
		}
	}
	return findings, nil
}

// numaNode is the free memory of one NUMA node, in pages.
type numaNode struct {
	name        string
	free, large uint64 // large: of these, in blocks of 16 pages and more
}

func (n numaNode) unusable() float64 { return 100 - checkkit.PercentOf(n.large, max(n.free, 1)) }

func (n numaNode) finding() finding.Finding {
	return finding.Finding{
		Subject: finding.Subject{Kind: "numa-node", Name: n.name}, Severity: finding.Warning,
		Reason: "MemoryFragmented", BelowRaise: n.unusable() < fragmentedAt,
		Message: fmt.Sprintf("%.1f %% of the free memory of NUMA node %s is in blocks of fewer than 16 pages, and "+
			"compaction failed", n.unusable(), n.name),
		Facts: map[string]string{
			"freePages": fmt.Sprint(n.free), "freePagesInLargeBlocks": fmt.Sprint(n.large),
		},
	}
}

// parseBuddyinfo adds up the zones of each NUMA node.
func parseBuddyinfo(text string) ([]numaNode, error) {
	var nodes []numaNode
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 5 || fields[0] != "Node" || fields[2] != "zone" {
			return nil, checkkit.InLine(line, errors.New("want \"Node 0, zone Normal\" and numbers"))
		}
		name := strings.TrimSuffix(fields[1], ",")
		if !slices.ContainsFunc(nodes, func(n numaNode) bool { return n.name == name }) {
			nodes = append(nodes, numaNode{name: name})
		}
		if fields[3] == "DMA" {
			continue
		}
		node := &nodes[slices.IndexFunc(nodes, func(n numaNode) bool { return n.name == name })]
		for order, field := range fields[4:] {
			blocks, err := strconv.ParseUint(field, 10, 32)
			if err != nil || order > 30 {
				return nil, checkkit.InLine(line, fmt.Errorf("bad number %q", checkkit.Sanitize(field, checkkit.MaxLine)))
			}
			node.free += blocks << order
			if order >= fragmentedOrder {
				node.large += blocks << order
			}
		}
	}
	if len(nodes) == 0 {
		return nil, fmt.Errorf("no zone")
	}
	return nodes, nil
}
