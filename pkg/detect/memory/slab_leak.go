package memory

import (
	"cmp"
	"context"
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

// slab-leak reads
//
//	/proc/meminfo     SUnreclaim:        48872 kB     objects of the kernel that it cannot give back
//	                  PageTables:         2800 kB     translations of the memory of all processes
//	                  Percpu:             2608 kB     counters for each processor: cgroups, network, BPF (Linux 4.20)
//	                  VmallocUsed:       20720 kB     modules, BPF programs, large tables (0 between Linux 4.4 and 5.2)
//
// and, only if objects are too many, /proc/slabinfo (root only):
//
//	# name            <active_objs> <num_objs> <objsize> <objperslab> <pagesperslab> : tunables …
//	kmalloc-64          123456     234567     64   64    1 : tunables    0    0    0 : slabdata   3665   3665      0
//
// https://docs.kernel.org/filesystems/proc.html#meminfo, slabinfo(5)

// SlabLeakSettings adjust slab-leak.
type SlabLeakSettings struct {
	KernelPercent float64 `yaml:"kernelPercent"` // of all memory, for one kind of kernel memory
}

// DefaultSlabLeakSettings returns the settings that are used unless the configuration says otherwise.
func DefaultSlabLeakSettings() SlabLeakSettings { return SlabLeakSettings{KernelPercent: 25} }

const (
	slabLeakMin  = 1 << 30 // bytes; less is a large share of a tiny machine only
	slabLeakKeep = 0.8     // of the threshold
)

// SlabLeak finds nodes whose kernel holds too much memory.
func SlabLeak(s SlabLeakSettings) detect.Check {
	return detect.Check{
		ID: "slab-leak", Domain: "memory",
		Summary: "the kernel itself uses too much memory",
		Advice: "`slabtop -s c` shows the objects: names such as kmalloc-64 say little, but dentry, nf_conntrack, " +
			"TCP, skbuff_head_cache or a driver's name lead to the cause. Much Percpu with many dead cgroups: see " +
			"dying-cgroups. A leak ends only with a reboot: drain the node.",
		Doc: detect.Doc{
			Reads: []string{"/proc/meminfo", "/proc/slabinfo, when objects are too many"},
			Why:   "Kernel memory belongs to no pod: kubelet evicts one pod after the other for it, and gains nothing.",
			Faults: []detect.Fault{
				{Reason: "SlabLeak", Severity: finding.Warning, When: "SUnreclaim is 25 % of the memory and 1 GiB " +
					"for 5 minutes; cleared at 20 %. A healthy node has 1 to 5 %"},
				{Reason: "KernelMemoryHigh", Severity: finding.Warning, When: "PageTables, Percpu or VmallocUsed is " +
					"25 % of the memory and 1 GiB for 5 minutes; cleared at 20 %"},
			},
			FalseAlarms: "Nodes whose purpose is a kernel cache, such as that of ZFS: set kernelPercent higher. " +
				"PageTables also grow with the number of processes that map the same large memory, as those of a " +
				"database do.",
		},
		Every: time.Minute, Deadline: 5 * time.Second,
		Policy: finding.Policy{Raise: finding.Hold{Runs: 3, For: 5 * time.Minute},
			Clear: finding.Hold{Runs: 3, For: 3 * time.Minute}},
		Run: s.run,
	}
}

func (s SlabLeakSettings) run(_ context.Context, h *host.Host) ([]finding.Finding, error) {
	info, err := checkkit.ReadMeminfo(h.Files)
	if err != nil {
		return nil, err
	}
	if _, ok := info["SUnreclaim"]; !ok {
		return nil, fmt.Errorf("read /proc/meminfo: no SUnreclaim")
	}
	total := info["MemTotal"]
	worst := slices.MaxFunc([]string{"SUnreclaim", "PageTables", "Percpu", "VmallocUsed"}, func(a, b string) int {
		return cmp.Compare(info[a], info[b])
	})
	held := info[worst]
	share := checkkit.PercentOf(held, total)
	if s.KernelPercent <= 0 || held < slabLeakMin || share < s.KernelPercent*slabLeakKeep {
		return nil, nil
	}
	f := finding.Finding{
		Subject: checkkit.NodeSubject(h), Severity: finding.Warning,
		Reason: "KernelMemoryHigh", BelowRaise: share < s.KernelPercent,
		Message: fmt.Sprintf("the kernel holds %s of %s (%.0f %%) as %s", checkkit.SizeText(held),
			checkkit.SizeText(total), share, worst),
		Facts: map[string]string{"kind": worst, "bytes": fmt.Sprint(held)},
	}
	if worst == "SUnreclaim" {
		f.Reason = "SlabLeak"
		if caches := largestCaches(h.Files); len(caches) > 0 {
			f.Message += "; largest: " + finding.JoinFirst(caches, 3)
			f.Facts["caches"] = finding.JoinFirst(caches, 10)
		}
	}
	return []finding.Finding{f}, nil
}

// largestCaches returns the object caches that use most memory, with their sizes; none if the kernel does not show
// them.
func largestCaches(files host.Files) []string {
	data, err := files.Read("/proc/slabinfo")
	if err != nil {
		return nil
	}
	sizes := make(map[string]float64)
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) < 6 || strings.HasPrefix(line, "#") {
			continue
		}
		objects, err := strconv.ParseUint(fields[2], 10, 48)
		size, err2 := strconv.ParseUint(fields[3], 10, 32)
		if err == nil && err2 == nil {
			sizes[checkkit.Sanitize(fields[0], checkkit.MaxLine)] += float64(objects) * float64(size)
		}
	}
	var words []string
	for _, name := range checkkit.Largest(sizes)[:min(len(sizes), 10)] {
		words = append(words, name+" "+checkkit.SizeText(uint64(sizes[name])))
	}
	return words
}
