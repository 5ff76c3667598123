// Package storage finds faults of disks, arrays and filesystems. Checks of more than two files have their own folders.
package storage

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/detect/storage/filesystem"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

const (
	maxDeviceName = 64 // DISK_NAME_LEN is 32
	maxBlockDepth = 16 // devices on top of each other
)

// deviceSubject is a block device under its name in the kernel's log: "sda", without "/dev/".
func deviceSubject(name string) finding.Subject { return finding.Subject{Kind: "device", Name: name} }

// diskOf returns the whole disk of a partition, or the name itself: /sys/class/block/sda1 leads to …/block/sda/sda1.
func diskOf(files host.Files, name string) string {
	target, err := files.Link("/sys/class/block/" + name)
	if err != nil {
		return name
	}
	if parent := path.Dir(target); path.Base(path.Dir(parent)) == "block" {
		return path.Base(parent)
	}
	return name
}

// lowerDevices returns the whole disks on which a device is stacked (dm, md, bcache, native multipath); none for a
// disk.
func lowerDevices(files host.Files, name string) []string {
	slaves, err := checkkit.ListSorted(files, "/sys/block/"+diskOf(files, name)+"/slaves")
	if err != nil {
		return nil
	}
	for i, slave := range slaves {
		slaves[i] = diskOf(files, slave)
	}
	return slices.Compact(slaves)
}

// wholeStack returns the disk of a device and all disks below it.
func wholeStack(files host.Files, name string) []string {
	return stackUntil(files, name, func(string) bool { return false })
}

// stackUntil returns the disk of a device and the disks below it, without those below a disk for which end is true.
func stackUntil(files host.Files, name string, end func(disk string) bool) []string {
	all := []string{diskOf(files, name)}
	for i := 0; i < len(all) && i < maxBlockDepth*maxBlockDepth; i++ {
		if end(all[i]) {
			continue
		}
		for _, lower := range lowerDevices(files, all[i]) {
			if !slices.Contains(all, lower) {
				all = append(all, lower)
			}
		}
	}
	return all
}

// vitalDevice is a block device, disk or partition, with a filesystem that the node itself needs.
type vitalDevice struct {
	name  string
	paths []string // paths of the node on it
}

// vitalDevices finds the devices of the filesystems of the node, of kubelet and of the runtime.
func vitalDevices(h *host.Host, mounts []mount.Mount) []vitalDevice {
	var vital []vitalDevice
	for _, f := range filesystem.BlockFilesystems(mounts) {
		var paths []string
		for _, name := range []string{"/", h.Paths.KubeletRoot, h.Paths.ContainerdRoot, h.Paths.PodLogs} {
			if name != "" && f.Holds(mounts, name) && !slices.Contains(paths, name) {
				paths = append(paths, name)
			}
		}
		if name := f.DeviceName(h.Files); len(paths) > 0 && name != "" {
			vital = append(vital, vitalDevice{name, paths})
		}
	}
	return vital
}

// addImpact adds the pods with volumes on disks to a finding, and, if it is vital, the purposes for which the node
// needs the disks; those make the finding fatal if it may be. It skips unreadable data: the fault itself is known.
func addImpact(ctx context.Context, h *host.Host, f *finding.Finding, vital, mayBeFatal bool, disks ...string) {
	mounts, _, err := mount.Known(mount.Recent(h))
	if err != nil {
		return
	}
	var needed, pods []string
	for _, disk := range disks {
		if vital {
			needed = append(needed, vitalWithoutSpare(h, mounts, disk)...)
		}
		pods = append(pods, podsOnDisk(ctx, h, mounts, disk)...)
	}
	if mayBeFatal && len(needed) > 0 {
		f.Severity = finding.Fatal
	}
	checkkit.AddNeededFor(f, needed)
	checkkit.AddAffectedPods(f, pods)
}

// podsOnDisk names the pods with a volume on a disk, or on devices on top of it. It only reads the mount table: if the
// disk has the layers of containers, all pods are affected anyway.
func podsOnDisk(ctx context.Context, h *host.Host, mounts []mount.Mount, disk string) []string {
	affected := make(map[string]bool) // pod UIDs
	for _, f := range filesystem.BlockFilesystems(mounts) {
		var uids []string
		for _, m := range f.Mounts {
			if uid, ok := h.Paths.PodOfPath(m.Point); ok {
				uids = append(uids, uid)
			}
		}
		if len(uids) == 0 {
			continue
		}
		if name := f.DeviceName(h.Files); name == "" || !slices.Contains(wholeStack(h.Files, name), disk) {
			continue
		}
		for _, uid := range uids {
			affected[uid] = true
		}
	}
	return checkkit.PodNames(ctx, h, slices.Sorted(maps.Keys(affected)))
}

// vitalWithoutSpare returns the node's own paths on a disk without redundancy: between the filesystem and the disk there is
// no array (md, dm-raid, dm-mirror) and no multipath device.
func vitalWithoutSpare(h *host.Host, mounts []mount.Mount, disk string) []string {
	spare := func(disk string) bool { return mayHaveSpare(h.Files, disk) }
	var paths []string
	for _, v := range vitalDevices(h, mounts) {
		if slices.Contains(stackUntil(h.Files, v.name, spare), disk) {
			paths = append(paths, v.paths...)
		}
	}
	return paths
}

// mayHaveSpare reports arrays and multipath devices. The UUID of a mapped device starts with its creator; LVM's do not
// distinguish a mirror from others, but the names of its images do.
func mayHaveSpare(files host.Files, name string) bool {
	if _, err := files.Text("/sys/block/" + name + "/md/array_state"); err == nil {
		return true
	}
	uuid, err := files.Text("/sys/block/" + name + "/dm/uuid")
	if err != nil {
		return false
	}
	if strings.HasPrefix(uuid, multipathUUID) {
		return true
	}
	return slices.ContainsFunc(lowerDevices(files, name), func(lower string) bool {
		image, err := files.Text("/sys/block/" + lower + "/dm/name")
		return err == nil && (strings.Contains(image, "_rimage_") || strings.Contains(image, "_mimage_"))
	})
}

// multipathUUID is the UUID prefix of multipathd's devices.
const multipathUUID = "mpath-"

// diskStat is one line of /proc/diskstats: a disk, a partition, or a device stacked on them.
//
//	259       0 nvme0n1 157698 1 9283446 30164 1174533 417126 41357770 1316471 3 703612 1346636 0 0 0 0 83621 0
//
// After the numbers of the device and its name: reads completed, merged, sectors, ms; the same of writes; I/Os in
// flight, ms with any in flight, their sum of ms; since Linux 4.18 the four of discards; since 5.5 flushes completed,
// ms. The counters begin at boot, or when the device appears.
//
// https://docs.kernel.org/admin-guide/iostats.html
type diskStat struct {
	major, minor int
	name         string
	completed    uint64 // reads, writes, discards and flushes, including failed ones
	inFlight     uint64
	weightedMS   uint64 // total time of all I/Os; only old kernels include those in flight
	sectors      uint64 // of 512 bytes, read and written
}

// Majors of devices that are no disks: Documentation/admin-guide/devices.txt.
const (
	majorRAM    = 1
	majorFloppy = 2
	majorLoop   = 7
	majorCDROM  = 11
)

// irrelevant reports devices in memory and drives whose medium may be absent or slow. Loop devices are relevant: their
// content hangs with the file behind them.
func (d diskStat) irrelevant() bool {
	return slices.Contains([]int{majorRAM, majorFloppy, majorCDROM}, d.major) || strings.HasPrefix(d.name, "zram")
}

// device is the device number in the form of the mount table.
func (d diskStat) device() string { return fmt.Sprintf("%d:%d", d.major, d.minor) }

const diskStatsFile = "/proc/diskstats"

func readDiskStats(files host.Files) ([]diskStat, error) {
	return checkkit.Parse(files, diskStatsFile, parseDiskStats)
}

// parseDiskStats skips irrelevant devices, and fields that newer kernels add at the end of a line.
func parseDiskStats(text string) ([]diskStat, error) {
	stats := make([]diskStat, 0, strings.Count(text, "\n"))
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		d, err := parseDiskStat(fields)
		if err != nil {
			return nil, checkkit.InLine(line, err)
		}
		if !d.irrelevant() {
			stats = append(stats, d)
		}
	}
	return stats, nil
}

func parseDiskStat(fields []string) (diskStat, error) {
	const oldest, known = 14, 20 // number of fields in the oldest and in the newest format
	if len(fields) < oldest {
		return diskStat{}, fmt.Errorf("%d fields, want at least %d", len(fields), oldest)
	}
	var n [known]uint64
	for i, field := range fields[:min(len(fields), known)] {
		if i == 2 {
			continue
		}
		value, err := strconv.ParseUint(field, 10, 64)
		if err != nil {
			return diskStat{}, fmt.Errorf("field %d: bad number %q", i+1, checkkit.Sanitize(field, 40))
		}
		n[i] = value
	}
	const most = 1 << 20 // a device number has 12 bits for the major and 20 for the minor
	if n[0] >= most || n[1] >= most {
		return diskStat{}, fmt.Errorf("bad device number %d:%d", n[0], n[1])
	}
	d := diskStat{
		major: int(n[0]), minor: int(n[1]), name: checkkit.Sanitize(fields[2], maxDeviceName),
		completed: n[3] + n[7] + n[14] + n[18], inFlight: n[11], weightedMS: n[13], sectors: n[5] + n[9],
	}
	if d.inFlight >= 1<<31 {
		d.inFlight = 0 // kernels before 5.0 miscounted now and then, and showed a small negative number as a large one
	}
	return d, nil
}
