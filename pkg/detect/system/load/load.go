// Package load finds an overloaded machine, or one with blocked tasks.
package load

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/detect/system/tasks"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// load reads
//
//	/proc/loadavg             0.14 0.25 0.30 1/96 488        load over 1, 5, 15 minutes; runnable/all tasks; last PID
//	/proc/pressure/memory     some avg10=0.24 avg60=0.72 avg300=1.73 total=155743588       (also cpu, io)
//	                          full avg10=0.00 avg60=0.00 avg300=0.00 total=0
//	/sys/devices/system/cpu/online    0-1
//
// and, only if these are unusual, /proc/PID/task/TID/{stat,wchan} and /proc/PID/cgroup to name the cause. The load of
// Linux counts tasks that run, wait for a processor, or are blocked in the kernel (state D). A kernel without pressure
// stall information, or booted without psi=1, has no such files, which is fine.
//
// https://docs.kernel.org/accounting/psi.html, proc_loadavg(5), proc_pid_stat(5).
//
// The windows are long ones (load5, avg60), so that a burst is no fault and a single run has a result; the policy adds
// a minute. The Prometheus node mixin warns at a load of 2 per processor for 15 minutes, which batch nodes have all
// day; this check begins at 4. Blocked probes of another agent count: they prove that the same server is dead.

// Settings are the thresholds of load. A raised finding is kept until the value is below three quarters of them.
type Settings struct {
	LoadPerCPU float64 `yaml:"loadPerCPU"` // load over 5 minutes, for each processor
	// percent of a minute in which some task waited for a processor
	CPUPressure       float64 `yaml:"cpuPressure"`
	MemoryPressure    float64 `yaml:"memoryPressure"`    // percent of a minute in which all tasks waited for memory
	IOPressure        float64 `yaml:"ioPressure"`        // percent of a minute in which all tasks waited for I/O
	BlockedTasks      int     `yaml:"blockedTasks"`      // tasks in state D, for longer than half a minute
	FatalLoadPerCPU   float64 `yaml:"fatalLoadPerCPU"`   // load over 15 minutes, for each processor
	FatalMemoryStalls float64 `yaml:"fatalMemoryStalls"` // percent of 5 minutes in which all tasks waited for memory
}

// DefaultSettings returns the settings that are used unless the configuration says otherwise. A fault is fatal only if
// it keeps kubelet itself from serving: at 20 tasks for each processor over a quarter of an hour it gets one twentieth
// of one, and at 60 % memory stalls over five minutes the node does little but reclaim.
func DefaultSettings() Settings {
	return Settings{
		LoadPerCPU: 4, CPUPressure: 80, MemoryPressure: 20, IOPressure: 50, BlockedTasks: 10,
		FatalLoadPerCPU: 20, FatalMemoryStalls: 60,
	}
}

// New finds overloaded nodes, and names the cause.
func New(s Settings) detect.Check {
	state := &loadState{settings: s}
	return detect.Check{
		ID:      "load",
		Domain:  "cpu",
		Summary: "the node is overloaded: too much work for its processors, memory or disks",
		Advice: "Give limits to the pods and services that the message names, or move them. Tasks blocked in the " +
			"kernel wait for the disk or server that their wait channel indicates: more processors do not help there.",
		Doc: detect.Doc{
			Reads: []string{"/proc/loadavg", "/proc/pressure/{cpu,memory,io}", "/sys/devices/system/cpu/online",
				"/proc/PID/{stat,cgroup} and wchan, only when these are unusual"},
			Why: "kubelet and the runtime have to wait too: pods start late, probes time out, and healthy " +
				"pods are restarted.",
			Faults: []detect.Fault{
				{Reason: "MemoryPressureStall", Severity: finding.Fatal, When: "all tasks waited for memory in 20 % " +
					"of the last minute; fatal at 60 % over five minutes: the node does little but reclaim"},
				{Reason: "BlockedTasks", Severity: finding.Warning, When: "10 tasks in state D for longer than half " +
					"a minute: a disk or server does not answer"},
				{Reason: "IOPressureStall", Severity: finding.Warning, When: "all tasks waited for I/O in half of " +
					"the last minute, on a machine with work for each processor"},
				{Reason: "HighLoad", Severity: finding.Fatal, When: "4 tasks for each processor over 5 minutes; " +
					"fatal at 20 over 15 minutes without those blocked in the kernel: kubelet gets one twentieth of a processor"},
				{Reason: "CPUPressure", Severity: finding.Warning, When: "some task waited for a processor in 80 % " +
					"of the last minute, on a machine with work for each processor"},
			},
			FalseAlarms: "Pods throttled by their own CPU limit, one backup on an idle machine, and tasks that the " +
				"freezer of cgroup v1 holds do not count; neither do the agent's own threads, nor probes of its that hang.",
		},
		Condition: finding.Condition{
			Type: "NodeOverloaded", ReadyType: "NodeLoadAcceptable",
			HealthyReason: "NodeLoadIsAcceptable", HealthyMessage: "The node has no more work than it can do",
		},
		Every:    10 * time.Second,
		Deadline: 8 * time.Second,
		Policy: finding.Policy{Raise: finding.Hold{Runs: 3, For: time.Minute},
			Clear: finding.Hold{Runs: 3, For: time.Minute}},
		Run: state.run,
	}
}

// loadState is kept between runs.
type loadState struct {
	settings Settings
	scan     tasks.TaskScan // the last one
	fatal    bool           // the last finding was fatal; kept until well below the threshold
}

// run reads the cheap numbers, and scans tasks only if those are unusual.
func (m *loadState) run(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	seen, err := readLoad(h.Files)
	if err != nil {
		return nil, err
	}
	if !seen.unusual(m.settings) {
		m.scan, m.fatal = tasks.TaskScan{}, false
		return nil, nil
	}
	if m.scan, err = m.scan.Renew(ctx, h); err != nil {
		return nil, err
	}
	seen.Blocked, seen.BlockedLong = len(m.scan.Blocked), m.scan.BlockedLong()
	seen = seen.without(m.scan)
	faults := seen.evaluate(m.settings)
	if len(faults) == 0 {
		m.fatal = false
		return nil, nil
	}
	m.fatal = seen.isFatal(m.settings, m.fatal)
	return []finding.Finding{loadFinding(h, seen, faults, m.fatal, m.scan.Causes(ctx, h))}, nil
}

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
		return LoadSeen{}, fmt.Errorf("%q: want 5 fields", checkkit.Sanitize(text, 80))
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
		return LoadSeen{}, fmt.Errorf("%q: want runnable/all tasks", checkkit.Sanitize(fields[3], 80))
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
