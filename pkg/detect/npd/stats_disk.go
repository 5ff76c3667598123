package npd

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/procfs/blockdevice"
	statstypes "k8s.io/node-problem-detector/pkg/systemstatsmonitor/types"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/probe"
)

// diskSampler reads /proc/diskstats and asks mounted disks for their space.
func diskSampler(c statstypes.DiskStatsConfig) sampler {
	space := c.MetricsConfigs["disk/bytes_used"].DisplayName != ""
	return func(ctx context.Context, h *host.Host, last *previous) ([]sample, error) {
		disks, err := mountedDisks(h)
		if err != nil {
			return nil, err
		}
		devices := map[string]bool{}
		if c.IncludeAllAttachedBlk {
			for _, m := range disks {
				devices[path.Base(m.Source)] = true
			}
		}
		if c.IncludeRootBlk {
			if err := addWholeDisks(h, devices); err != nil {
				return nil, err
			}
		}
		samples, err := sampleIO(h, devices, last)
		if !space {
			return samples, err
		}
		more, spaceErr := sampleSpace(ctx, h, disks)
		return append(samples, more...), errors.Join(err, spaceErr)
	}
}

// addWholeDisks adds all disks, without their partitions: the list of "lsblk -d".
func addWholeDisks(h *host.Host, devices map[string]bool) error {
	names, err := h.Files.List("/sys/block")
	if err != nil {
		return err
	}
	for _, name := range names {
		if size, err := h.Files.Text("/sys/block/" + name + "/size"); err == nil && size != "0" &&
			!strings.HasPrefix(name, "ram") {
			devices[name] = true
		}
	}
	return nil
}

// mountedDisks returns the first mount of each device with a disk filesystem.
func mountedDisks(h *host.Host) ([]mount.Mount, error) {
	known, err := h.Files.Read("/proc/filesystems")
	if err != nil {
		return nil, err
	}
	var onDisk []string
	for line := range strings.Lines(string(known)) {
		if fields := strings.Fields(line); len(fields) == 1 || len(fields) == 2 && fields[1] == "zfs" { // no "nodev"
			onDisk = append(onDisk, fields[len(fields)-1])
		}
	}
	mounts, _, err := mount.Known(mount.Recent(h))
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	return slices.DeleteFunc(slices.Clone(mounts), func(m mount.Mount) bool {
		if seen[m.Source] || !slices.Contains(onDisk, m.FSType) || m.Source == "none" {
			return true
		}
		seen[m.Source] = true
		return false
	}), nil
}

// sampleIO reads the counters of devices.
func sampleIO(h *host.Host, devices map[string]bool, last *previous) ([]sample, error) {
	fs, err := blockdevice.NewFS(h.Files.Path("/proc"), h.Files.Path("/sys"))
	if err != nil {
		return nil, err
	}
	stats, err := fs.ProcDiskstats()
	if err != nil {
		return nil, fmt.Errorf("read /proc/diskstats: %w", err)
	}
	elapsed := h.Clock().SinceBoot - last.at
	weighted := map[string]uint64{}
	var samples []sample
	for _, s := range stats {
		if !devices[s.DeviceName] {
			continue
		}
		name := label(s.DeviceName)
		samples = append(samples, ioSamples(name, s.IOStats)...)
		weighted[s.DeviceName] = s.WeightedIOTicks
		if before, ok := last.weighted[s.DeviceName]; ok && elapsed > 0 && s.WeightedIOTicks >= before {
			queue := gauge("disk/avg_queue_len", "The average queue length on the disk", "device_name")
			samples = append(samples, sample{queue, []string{name},
				float64(s.WeightedIOTicks-before) / float64(elapsed.Milliseconds()+1)})
		}
	}
	last.weighted = weighted
	return samples, nil
}

func ioSamples(name string, s blockdevice.IOStats) []sample {
	var samples []sample
	add := func(id, help, direction string, value uint64) {
		m, labels := total(id, help, "device_name"), []string{name}
		if direction != "" {
			m.labels, labels = append(m.labels, "direction"), append(labels, direction)
		}
		samples = append(samples, sample{m, labels, float64(value)})
	}
	const sector = 512
	add("disk/io_time", "The IO time spent on the disk, in ms", "", s.IOsTotalTicks)
	add("disk/weighted_io", "The weighted IO on the disk, in ms", "", s.WeightedIOTicks)
	for _, d := range []struct {
		direction                   string
		count, merges, bytes, ticks uint64
	}{
		{"read", s.ReadIOs, s.ReadMerges, s.ReadSectors * sector, s.ReadTicks},
		{"write", s.WriteIOs, s.WriteMerges, s.WriteSectors * sector, s.WriteTicks},
	} {
		add("disk/operation_count", "Disk operations count", d.direction, d.count)
		add("disk/merged_operation_count", "Disk merged operations count", d.direction, d.merges)
		add("disk/operation_bytes_count", "Bytes transferred in disk operations", d.direction, d.bytes)
		add("disk/operation_time", "Time spent in disk operations, in ms", d.direction, d.ticks)
	}
	return samples
}

// spacePatience is how long one disk may take to return its space.
const spacePatience = 2 * time.Second

// sampleSpace reads the space of disks in a child: a disk that hangs affects only itself.
func sampleSpace(ctx context.Context, h *host.Host, disks []mount.Mount) ([]sample, error) {
	const most = 64 // each is read within the deadline of the check
	disks = disks[:min(len(disks), most)]
	requests := make([]probe.ProbeRequest, 0, len(disks))
	for _, m := range disks {
		requests = append(requests, probe.ProbeRequest{Op: probe.ProbeStatfs, Path: m.Point})
	}
	var samples []sample
	var problems []error
	used := gauge("disk/bytes_used", "Disk bytes used, in Bytes", "device_name", "fs_type", "mount_option", "state")
	percent := gauge("disk/percent_used", "Disk usage in percentage of total space", "device_name")
	for i, r := range h.Prober.All(ctx, spacePatience, requests) {
		m := disks[i]
		if r.Err != nil || r.Answer.Errno != 0 || r.Answer.TotalBytes == 0 {
			problems = append(problems, r.Err)
			continue
		}
		name := label(strings.TrimPrefix(m.Source, "/dev/"))
		free, taken := float64(r.Answer.FreeBytes),
			float64(r.Answer.TotalBytes-min(r.Answer.TotalBytes, r.Answer.RootBytes))
		labels := func(state string) []string {
			return []string{name, label(m.FSType), label(strings.Join(m.Options, ",")), state}
		}
		samples = append(samples, sample{used, labels("free"), free}, sample{used, labels("used"), taken})
		if free+taken > 0 {
			samples = append(samples, sample{percent, []string{name}, 100 * taken / (free + taken)})
		}
	}
	return samples, errors.Join(problems...)
}
