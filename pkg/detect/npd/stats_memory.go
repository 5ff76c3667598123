package npd

import (
	"context"
	"fmt"

	"github.com/prometheus/procfs"

	"github.com/nodeagent/nodeagent/internal/host"
)

// sampleMemory reads /proc/meminfo, whose numbers are KiB. It skips lines that the kernel does not have.
func sampleMemory(_ context.Context, h *host.Host, _ *previous) ([]sample, error) {
	fs, err := procfs.NewFS(h.Files.Path("/proc"))
	if err != nil {
		return nil, err
	}
	info, err := fs.Meminfo()
	if err != nil {
		return nil, fmt.Errorf("read /proc/meminfo: %w", err)
	}
	var samples []sample
	add := func(m *metric, state string, kib *uint64) {
		if kib != nil {
			samples = append(samples, sample{m, []string{state}[:len(m.labels)], float64(*kib) * 1024})
		}
	}

	used := gauge("memory/bytes_used", "Memory usage by each memory state, in Bytes. Summing values of all states "+
		"yields the total memory on the node.", "state")
	add(used, "free", info.MemFree)
	add(used, "buffered", info.Buffers)
	add(used, "cached", info.Cached)
	add(used, "slab", info.Slab)
	if info.MemTotal != nil && *info.MemTotal > 0 && info.MemFree != nil && info.Buffers != nil && info.Cached != nil &&
		info.Slab != nil {
		rest := *info.MemTotal - min(*info.MemTotal, *info.MemFree+*info.Buffers+*info.Cached+*info.Slab)
		add(used, "used", &rest)
		percent := gauge("memory/percent_used", "Memory usage in percentage of total memory.", "state")
		samples = append(samples, sample{percent, []string{"used"}, 100 * float64(rest) / float64(*info.MemTotal)})
	}
	dirty := gauge("memory/dirty_used", "Dirty pages usage, in Bytes. Dirty means the memory is waiting to be "+
		"written back to disk, and writeback means the memory is actively being written back to disk.", "state")
	add(dirty, "dirty", info.Dirty)
	add(dirty, "writeback", info.Writeback)
	anonymous := gauge("memory/anonymous_used", "Anonymous memory usage, in Bytes. Summing values of all states "+
		"yields the total anonymous memory used.", "state")
	add(anonymous, "active", info.ActiveAnon)
	add(anonymous, "inactive", info.InactiveAnon)
	cache := gauge("memory/page_cache_used", "Page cache memory usage, in Bytes. Summing values of all states yields "+
		"the total anonymous memory used.", "state")
	add(cache, "active", info.ActiveFile)
	add(cache, "inactive", info.InactiveFile)
	add(gauge("memory/unevictable_used", "Unevictable memory usage, in Bytes"), "", info.Unevictable)
	return samples, nil
}
