package hardware

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

const cpuRoot = "/sys/devices/system/cpu"

// errNoThrottling is returned if processors do not count how often they were throttled.
var errNoThrottling = errors.New("no processor counts how often it was throttled")

// cpuPackages returns the folder thermal_throttle of one processor of each package.
func cpuPackages(files host.Files) (map[string]string, error) {
	names, err := checkkit.ListSorted(files, cpuRoot)
	if err != nil {
		return nil, err
	}
	first := make(map[string]string)
	for _, name := range names {
		number, isCPU := strings.CutPrefix(name, "cpu")
		if _, err := strconv.Atoi(number); !isCPU || err != nil {
			continue
		}
		dir := path.Join(cpuRoot, name, "thermal_throttle")
		if _, err := files.Stat(path.Join(dir, "package_throttle_count")); err != nil {
			if len(first) == 0 && name == "cpu0" {
				return nil, errNoThrottling // a virtual machine, or a processor of another vendor
			}
			continue // switched off
		}
		id, err := files.Text(path.Join(cpuRoot, name, "topology/physical_package_id"))
		if err != nil {
			return nil, err
		}
		if first[id] == "" {
			first[id] = dir
		}
	}
	return first, nil
}

// thermalThrottling holds the counts of one package since boot.
type thermalThrottling struct {
	count uint64
	time  time.Duration
	timed bool // the kernel counts the time
}

func readThermalThrottling(files host.Files, dir string) (thermalThrottling, error) {
	count, err := checkkit.ReadCount(files, path.Join(dir, "package_throttle_count"))
	if err != nil {
		return thermalThrottling{}, err
	}
	ms, err := checkkit.ReadCount(files, path.Join(dir, "package_throttle_total_time_ms"))
	if errors.Is(err, fs.ErrNotExist) {
		return thermalThrottling{count: count}, nil
	}
	return thermalThrottling{count, time.Duration(min(ms, 1<<40)) * time.Millisecond, true}, err
}

// thermalPackage is the state kept for one package.
type thermalPackage struct {
	counted  bool
	base     thermalThrottling // where the current minute began
	since    time.Duration
	hot      bool          // the minute before had any
	open     time.Duration // uptime since when a spell goes on: it was counted, but not its time; 0 for none
	throttle checkkit.RecentCount
}

// evaluate compares the counters with those of a minute before, or longer: a wake may come at any time.
func (p *thermalPackage) evaluate(now thermalThrottling, up time.Duration) (finding.Finding, bool) {
	if !p.counted || now.count < p.base.count || now.time < p.base.time {
		p.counted, p.base, p.since, p.open = true, now, up, 0
	}
	elapsed, spells, hot := up-p.since, now.count-p.base.count, now.time-p.base.time
	goesOn := p.open > 0 && up-p.open >= time.Minute && up-p.open < thermalOpen && hot == 0
	if goesOn || float64(hot)*100 >= thermalShare*float64(max(elapsed, time.Minute)) && now.timed || spells > 0 &&
		p.hot {
		p.throttle.Add(spells, up)
		p.base.count, p.base.time = now.count, now.time
	}
	switch {
	case hot > 0 || !now.timed:
		p.open = 0
	case spells > 0 && p.open == 0:
		p.open = up
	}
	if elapsed >= time.Minute {
		p.base, p.since, p.hot = now, up, spells > 0
	}
	if !p.throttle.Recent(up, thermalFor) {
		return finding.Finding{}, false
	}
	f := finding.Finding{
		Severity: finding.Warning, Reason: "CPUThrottled",
		Message: fmt.Sprintf("the package is too hot and runs slower: throttled %d times since boot", now.count),
		Facts:   map[string]string{"countSinceBoot": fmt.Sprint(now.count)},
	}
	if now.timed {
		f.Message += fmt.Sprintf(", for %s", now.time.Round(time.Millisecond))
		f.Facts["millisecondsSinceBoot"] = fmt.Sprint(now.time.Milliseconds())
	}
	return f, true
}
