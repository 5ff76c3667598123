package load

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"syscall"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
)

// LoadSeen holds the readings of one run.
type LoadSeen struct {
	CPUs                 int
	Load1, Load5, Load15 float64
	Runnable             int    // tasks that run or wait for a processor at this moment
	Tasks                uint64 // of the machine
	CPU, Memory, IO      pressure
	// tasks in state D now, and those that were so half a minute ago too. Known only after a scan
	Blocked, BlockedLong int
}

// pressure is one file of /proc/pressure, in percent; zero if the kernel has none.
type pressure struct {
	Known            bool
	Some60, Full60   float64
	Some300, Full300 float64
}

func readLoad(files host.Files) (LoadSeen, error) {
	seen, err := checkkit.Parse(files, "/proc/loadavg", ParseLoadavg)
	if err != nil {
		return LoadSeen{}, err
	}
	if seen.CPUs, err = checkkit.Parse(files, "/sys/devices/system/cpu/online", checkkit.CountCPUs); err != nil {
		return LoadSeen{}, err
	}
	for name, into := range map[string]*pressure{"cpu": &seen.CPU, "memory": &seen.Memory, "io": &seen.IO} {
		*into, err = checkkit.Parse(files, "/proc/pressure/"+name, parsePressure)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.EOPNOTSUPP) { // EOPNOTSUPP: switched off at boot
			continue
		}
		if err != nil {
			return LoadSeen{}, err
		}
	}
	return seen, nil
}

// ParseLoadavg parses "0.14 0.25 0.30 1/96 488".
func ParseLoadavg(text string) (LoadSeen, error) {
	var seen LoadSeen
	fields := strings.Fields(text)
	if len(fields) != 5 {
		return LoadSeen{}, fmt.Errorf("%q: want 5 fields", text)
	}
	for i, into := range []*float64{&seen.Load1, &seen.Load5, &seen.Load15} {
		value, err := checkkit.ParseShare(fields[i])
		if err != nil {
			return LoadSeen{}, err
		}
		*into = value
	}
	running, all, _ := strings.Cut(fields[3], "/")
	runnable, err := strconv.Atoi(running)
	tasks, errAll := strconv.ParseUint(all, 10, 32)
	if err != nil || errAll != nil || runnable < 0 {
		return LoadSeen{}, fmt.Errorf("%q: want runnable/all tasks", fields[3])
	}
	seen.Runnable, seen.Tasks = max(runnable-1, 0), tasks // the reader itself runs
	return seen, nil
}

// parsePressure parses the lines "some avg10=0.24 avg60=0.72 avg300=1.73 total=155743588" and "full …". The cpu file
// has no "full" line before Linux 5.13. Other lines are skipped.
func parsePressure(text string) (pressure, error) {
	p := pressure{}
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		var avg60, avg300 *float64
		switch fields[0] {
		case "some":
			avg60, avg300, p.Known = &p.Some60, &p.Some300, true
		case "full":
			avg60, avg300 = &p.Full60, &p.Full300
		default:
			continue
		}
		for key, into := range map[string]*float64{"avg60=": avg60, "avg300=": avg300} {
			value, err := checkkit.FieldAfter(fields, key)
			if err != nil {
				return pressure{}, checkkit.InLine(line, err)
			}
			*into = value
		}
	}
	if !p.Known {
		return pressure{}, fmt.Errorf("%q: no line begins with some", text)
	}
	return p, nil
}
