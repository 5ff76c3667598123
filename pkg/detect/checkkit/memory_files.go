package checkkit

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
)

// The common files of the memory checks: /proc/meminfo, and the flat files "name value" of /proc/vmstat and of cgroup
// v2.
//
//	MemTotal:       24683656 kB             oom_kill 36
//	HugePages_Total:       0                nr_dying_descendants 0
//
// https://docs.kernel.org/filesystems/proc.html#meminfo, https://docs.kernel.org/admin-guide/cgroup-v2.html#conventions

// Counts are numbers by name. Those of /proc/meminfo that have a unit are in bytes.
type Counts map[string]uint64

// ReadMeminfo reads /proc/meminfo, in bytes, except for the HugePages_ lines, which are counts (proc_meminfo(5)).
func ReadMeminfo(files host.Files) (Counts, error) {
	info, err := Parse(files, "/proc/meminfo", ParseMeminfo)
	if err == nil && info["MemTotal"] == 0 {
		return nil, fmt.Errorf("read /proc/meminfo: no MemTotal")
	}
	return info, err
}

// ParseMeminfo parses the text of /proc/meminfo: see ReadMeminfo.
func ParseMeminfo(text string) (Counts, error) {
	info := make(Counts)
	for line := range strings.Lines(text) {
		name, rest, ok := strings.Cut(strings.TrimSpace(line), ":")
		number, isKiB := strings.CutSuffix(strings.TrimSpace(rest), " kB")
		value, err := strconv.ParseUint(number, 10, 54) // 54 bits of KiB are 64 bits of bytes
		if !ok || err != nil {
			return nil, InLine(line, errors.New("want \"name: number kB\""))
		}
		if isKiB {
			value <<= 10
		}
		info[name] = value
	}
	return info, nil
}

// ReadCounts reads a flat file.
func ReadCounts(files host.Files, name string) (Counts, error) {
	return Parse(files, name, ParseCounts)
}

// ParseCounts parses lines of a name and a number, as in memory.events, /proc/vmstat and /proc/net/snmp6.
func ParseCounts(text string) (Counts, error) {
	counts := make(Counts)
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) != 2 {
			return nil, InLine(line, errors.New("want \"name number\""))
		}
		value, err := strconv.ParseUint(fields[1], 10, 64)
		if err != nil {
			return nil, InLine(line, err)
		}
		counts[fields[0]] = value
	}
	return counts, nil
}

// ReadCount reads a file with one number, like most counters in /sys.
func ReadCount(files host.Files, name string) (uint64, error) {
	return readInteger(files, name, func(text string) (uint64, error) { return strconv.ParseUint(text, 10, 64) })
}

func readInteger[N int | uint64](files host.Files, name string, parse func(string) (N, error)) (N, error) {
	text, err := files.Text(name)
	if err != nil {
		return 0, err
	}
	value, err := parse(text)
	if err != nil {
		return 0, fmt.Errorf("read %s: %q is no number", name, Sanitize(text, MaxLine))
	}
	return value, nil
}

// ReadLimit reads a limit of a cgroup: a number, or "max" for no limit (false). Without a limit cgroup v1 has a number
// that no machine can reach.
func ReadLimit(files host.Files, name string) (limit uint64, limited bool, err error) {
	text, err := files.Text(name)
	if err != nil || text == "max" {
		return 0, false, err
	}
	if limit, err = strconv.ParseUint(text, 10, 64); err != nil {
		return 0, false, fmt.Errorf("read %s: %q is neither a number nor max", name, Sanitize(text, MaxLine))
	}
	return limit, limit < 1<<60, nil
}

// SizeText formats a number of bytes.
func SizeText(bytes uint64) string {
	switch {
	case bytes >= 1<<30:
		return fmt.Sprintf("%.1f GiB", float64(bytes)/(1<<30))
	case bytes >= 1<<20:
		return fmt.Sprintf("%.0f MiB", float64(bytes)/(1<<20))
	}
	return fmt.Sprintf("%d KiB", bytes>>10)
}

// PercentOf returns part as a percentage of whole.
func PercentOf(part, whole uint64) float64 {
	if whole == 0 {
		return 0
	}
	return float64(part) * 100 / float64(whole)
}
