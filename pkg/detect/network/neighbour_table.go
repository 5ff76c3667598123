package network

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// neighbour-table reads /proc/net/stat/arp_cache and /proc/net/stat/ndisc_cache, hexadecimal, one line for each
// processor; the first column counts the whole table:
//
//	entries  allocs   destroys hash_grows lookups  hits     res_failed … periodic_gc_runs forced_gc_runs unresolved_discards table_fulls
//	00000002 000001c6 000001b2 00000002   00000da5 00000004 00000000     000004a4         00000000       00000000            00000000
//
// and /proc/sys/net/ipv{4,6}/neigh/default/gc_thresh{2,3}. The kernel refuses a new entry (table_fulls, "neighbor table
// overflow") if there are gc_thresh3 of them and a forced collection found none to drop.
//
// https://docs.kernel.org/networking/ip-sysctl.html (neigh/default/gc_thresh3), net/core/neighbour.c
//
// All network namespaces share the table: pods fill it as well as the node. Since Linux 5.0 permanent entries (flannel
// and Cilium keep one for every node) count among "entries" but not towards the limit, so their number alone proves
// nothing. The check therefore calls a table nearly full if its entries are between 90 % and 100 % of gc_thresh3 while
// collections are forced: these begin at gc_thresh2.

const neighbourNear = 0.9 // of gc_thresh3

// NeighbourTable finds full neighbour tables.
func NeighbourTable() detect.Check {
	c := &countersCheck{window: counterWindow{Span: 5 * time.Minute}}
	return detect.Check{
		ID: "neighbour-table", Domain: "network",
		Summary: "the neighbour table (ARP, NDP) is full or nearly full: new peers cannot be reached",
		Advice: "Run `ip -s neigh show nud all | wc -l` on the node and in its pods to find what fills the table. " +
			"Raise net.ipv4.neigh.default.gc_thresh1, 2 and 3 (or net.ipv6…) above the number of peers in the " +
			"segment: 4096, 8192, 16384 are common on large clusters.",
		Doc: detect.Doc{
			Reads: []string{"/proc/net/stat/{arp_cache,ndisc_cache}",
				"/proc/sys/net/{ipv4,ipv6}/neigh/default/gc_thresh3"},
			Why: "A node cannot send to a neighbour whose address it cannot store: new pods, nodes and gateways are " +
				"unreachable, at random.",
			Faults: []detect.Fault{
				{Reason: "NeighbourTableFull", Severity: finding.Warning,
					When: "an entry was refused within 5 minutes"},
				{Reason: "NeighbourTableNearlyFull", Severity: finding.Warning,
					When: "above 90 % of gc_thresh3, with forced collections within 5 minutes"},
			},
			FalseAlarms: "Permanent entries, which overlay networks keep for every node, do not count towards the " +
				"limit; the number alone is therefore no fault. A network scan fills the table for a moment, and " +
				"entries are refused all the same.",
		},
		CounterBased: true,
		Every:        time.Minute, Deadline: 5 * time.Second,
		Wakes:  []detect.Wake{checkkit.KernelWake()},
		Policy: finding.Policy{Clear: finding.Hold{Runs: 2, For: time.Minute}},
		Run:    c.neighbours,
	}
}

// neighbourTables are the tables by their name in the kernel's log, with the family of their settings.
var neighbourTables = [][2]string{{"arp_cache", "ipv4"}, {"ndisc_cache", "ipv6"}}

func neighbourSubject(table string) finding.Subject {
	return finding.Subject{Kind: "neighbour-table", Name: table}
}

func (c *countersCheck) neighbours(_ context.Context, h *host.Host) ([]finding.Finding, error) {
	files, up := h.Files, h.Clock().SinceBoot
	counters, entries, limits := map[string]uint64{}, map[string]uint64{}, map[string]uint64{}
	absent := 0
	var results checkkit.Results
	for _, table := range neighbourTables {
		name, family := table[0], table[1]
		p, err := readPerCPU(files, "/proc/net/stat/"+name)
		if errors.Is(err, fs.ErrNotExist) {
			absent++
		}
		if errors.Is(err, fs.ErrNotExist) && family == "ipv6" {
			continue // a kernel without it
		}
		if err == nil {
			limits[name], err = checkkit.ReadCount(files, "/proc/sys/net/"+family+"/neigh/default/gc_thresh3")
		}
		if results.Doubt(neighbourSubject(name), err) {
			continue
		}
		entries[name] = p.Entries
		counters[name+".fulls"], counters[name+".forced"] = p.Sum["table_fulls"], p.Sum["forced_gc_runs"]
	}
	if len(limits) == 0 && absent == len(neighbourTables) { // net/core/neighbour.c makes the files in init_net
		return nil, finding.NotApplicable("the kernel counts neighbours in its initial network namespace, and this " +
			"host, a container, has another one")
	}
	c.window.Add(up, counters)
	for _, table := range neighbourTables {
		if limit, known := limits[table[0]]; known {
			results.Add(c.neighbourTable(table[0], entries[table[0]], limit))
		}
	}
	return results.Done()
}

func (c *countersCheck) neighbourTable(table string, entries, limit uint64) (finding.Finding, bool) {
	f := finding.Finding{
		Subject: neighbourSubject(table), Severity: finding.Warning,
		Facts: map[string]string{"entries": fmt.Sprint(entries), "gcThresh3": fmt.Sprint(limit)},
	}
	fulls, in, _ := c.window.Rise(table + ".fulls")
	forced, _, _ := c.window.Rise(table + ".forced")
	share := float64(entries) / float64(max(limit, 1))
	near, belowRaise := checkkit.Reaches(share, neighbourNear)
	switch {
	case fulls > 0:
		f.Reason = "NeighbourTableFull"
		f.Message = fmt.Sprintf("%s refused %d new neighbours within %s; its limit is %d", table, fulls,
			in.Round(time.Second), limit)
		f.Facts["refused"] = fmt.Sprint(fulls)
	case forced > 0 && near && share <= 1:
		f.Reason, f.BelowRaise = "NeighbourTableNearlyFull", belowRaise
		f.Message = fmt.Sprintf("%s holds %d of %d neighbours, and was forced to drop some %d times", table, entries,
			limit, forced)
	default:
		return f, false
	}
	return f, true
}
