package storage

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
)

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
