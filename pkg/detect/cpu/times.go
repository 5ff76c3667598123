package cpu

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
)

// A rate is taken over ten minutes, and reported when half of them are known.
const (
	rateSpan    = 10 * time.Minute
	minRateSpan = 5 * time.Minute
)

// cpuTimes is one line of /proc/stat: ticks of 10 ms since boot, of one processor or of all.
type cpuTimes struct {
	busy, steal, total uint64
}

// readCPUTimes reads the first lines of /proc/stat, with all processors under -1:
//
//	cpu  23024 10 8841 1183200 3312 0 402 120 0 0      user nice system idle iowait irq softirq steal guest guest_nice
//	cpu0 …
//
// Guest time is a part of user time. https://man7.org/linux/man-pages/man5/proc_stat.5.html
func readCPUTimes(files host.Files) (map[int]cpuTimes, error) {
	return checkkit.Parse(files, "/proc/stat", parseCPUTimes)
}

func parseCPUTimes(data []byte) (map[int]cpuTimes, error) {
	times := make(map[int]cpuTimes)
	for line := range bytes.Lines(data) {
		rest, ok := bytes.CutPrefix(line, []byte("cpu"))
		if !ok {
			break // the lines of processors come first; that of interrupts is long
		}
		fields := strings.Fields(string(rest))
		cpu := -1
		if len(rest) > 0 && rest[0] != ' ' && len(fields) > 0 {
			n, err := strconv.ParseUint(fields[0], 10, 16)
			if err != nil {
				return nil, checkkit.InLine(string(line), errors.New("want cpu and its number"))
			}
			cpu, fields = int(n), fields[1:]
		}
		t, err := parseTicks(fields)
		if err != nil {
			return nil, checkkit.InLine(string(line), err)
		}
		times[cpu] = t
	}
	if _, ok := times[-1]; !ok {
		return nil, errors.New("no line of all processors")
	}
	return times, nil
}

// share records two counters, of which the first counts a part of the second, and returns how many percent of the rise
// of the whole the part was, that rise, and the time that it took. A counter that goes back is another one: the machine
// was moved, the cgroup re-created. Both then begin again.
func share(w *checkkit.Window[uint64], at time.Duration, part, whole uint64) (percent float64, rise uint64,
	elapsed time.Duration) {
	w.Span, w.OneProcess = rateSpan, true
	w.Add(at, map[string]uint64{"part": part, "whole": whole})
	part, _, _ = w.Rise("part")
	whole, elapsed, _ = w.Rise("whole")
	return 100 * float64(part) / float64(max(whole, 1)), whole, elapsed
}

func parseTicks(fields []string) (cpuTimes, error) {
	const idle, iowait, steal, counted = 3, 4, 7, 8
	if len(fields) < counted {
		return cpuTimes{}, fmt.Errorf("want at least %d numbers", counted)
	}
	var t cpuTimes
	for i, field := range fields[:counted] {
		n, err := strconv.ParseUint(field, 10, 56) // eight of them cannot overflow
		if err != nil {
			return cpuTimes{}, fmt.Errorf("bad number %q", field)
		}
		t.total += n
		switch i {
		case idle, iowait:
		case steal:
			t.steal = n
		default:
			t.busy += n
		}
	}
	return t, nil
}
