package hardware

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// thermal reads, in thousandths of a degree Celsius,
//
//	/sys/class/thermal/thermal_zone0/type                 x86_pkg_temp
//	                                 temp                 47000
//	                                 trip_point_0_type    critical      the kernel shuts the machine down there
//	                                 trip_point_0_temp    105000
//
// and of one processor of each package (Intel)
//
//	/sys/devices/system/cpu/cpu0/topology/physical_package_id                       0
//	/sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count            12      since boot
//	/sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_total_time_ms    340     since boot (Linux 5.8)
//
// https://docs.kernel.org/driver-api/thermal/sysfs-api.html, Documentation/ABI/testing/sysfs-devices-system-cpu
//
// A zone within 5 degrees of its critical point is about to shut the machine down; gone 10 degrees below. It is no
// more than a warning: where the kernel did not shut down, a reading at or above the point is a sensor's error. A
// package that was throttled for 1 % of a minute, or in two minutes in a row, loses noticeable speed; a single short
// spell is how processors are built to work. The time is counted when a spell ends: one that was counted without
// time, and that neither ends nor is followed by another for a minute, goes on. Throttled packages are told of for
// ten minutes. The count of the package contains what its cores cause, so that hundreds of files of cores need not be
// read.
//
// Known false alarms: zones with absurd critical points (0, below, or above 200 degrees) are not judged, nor those
// that are disabled or say that they have no reading. Some boards set critical points that they reach in normal use.
// A single spell shorter than a tick (4 ms) has no time either and looks as if it went on; it is not told for longer
// than half an hour.

const (
	thermalID      = "thermal"
	thermalNear    = 5_000  // thousandths of a degree below the critical point
	thermalKeep    = 10_000 // gone below this
	thermalAbsurd  = 200_000
	thermalShare   = 1 // percent of the time throttled
	thermalFor     = 10 * time.Minute
	thermalOpen    = 20 * time.Minute // a spell without an end is believed for so long
	thermalRefresh = time.Hour        // how long it is remembered what the same zones are, and which packages there are
)

// Thermal finds machines that are too hot.
func Thermal() detect.Check {
	c := &thermalCheck{packages: make(map[string]*thermalPackage)}
	return detect.Check{
		ID: thermalID, Domain: "hardware",
		Summary: "the machine is too hot: it runs slower, or is about to shut down",
		Advice: "Look at fans, filters and the temperature of the room (`ipmitool sdr type Fan`, `sensors`); one " +
			"machine alone: the heat sink. Drain it before the kernel shuts it down.",
		Doc: detect.Doc{
			Reads: []string{"/sys/class/thermal/thermal_zone*",
				"/sys/devices/system/cpu/cpu*/thermal_throttle/package_throttle_*, of one processor of each package"},
			Why: "A throttled processor makes all pods slow without any sign in them; a critical temperature ends " +
				"all of them at once.",
			Faults: []detect.Fault{
				{Reason: "CPUThrottled", Severity: finding.Warning, When: "a processor package was throttled for 1 % " +
					"of a minute, in two minutes in a row, or goes on to be; for 10 minutes after the last time"},
				{Reason: "TemperatureHigh", Severity: finding.Warning, When: "a zone is within 5 °C of its critical " +
					"point for a minute; gone 10 °C below"},
			},
			FalseAlarms: "Zones with absurd critical points are not judged; boards that reach theirs in normal use are.",
		},
		CounterBased: true,
		Every:        time.Minute, Deadline: 10 * time.Second,
		Wakes:  []detect.Wake{checkkit.KernelWake()},
		Policy: finding.Policy{Raise: finding.Hold{Looks: 2}},
		Run: func(_ context.Context, h *host.Host) ([]finding.Finding, error) {
			return c.look(h)
		},
	}
}

// thermalCheck remembers where to look, and what was counted.
type thermalCheck struct {
	found    time.Duration
	parts    []sensorPart
	zones    []thermalZone
	first    map[string]string // package to the folder of one of its processors
	packages map[string]*thermalPackage
}

func (c *thermalCheck) look(h *host.Host) ([]finding.Finding, error) {
	now := h.Clock().SinceBoot
	parts, err := sensorParts(h.Files, thermalRoot, "thermal_zone")
	if err != nil {
		return nil, err
	}
	if c.found == 0 || now-c.found > thermalRefresh || !slices.Equal(parts, c.parts) {
		if err := c.find(h.Files, parts); err != nil {
			return nil, err
		}
		c.found, c.parts = now, parts
	}
	if len(c.zones) == 0 && len(c.first) == 0 {
		return nil, finding.NotApplicable(
			"neither a zone with a critical temperature nor a processor that counts throttling")
	}
	var findings []finding.Finding
	doubts := make(map[finding.Subject]error)
	for _, z := range c.zones {
		f, ok, err := z.judge(h.Files)
		if err != nil {
			doubts[z.subject()] = err
		} else if ok {
			findings = append(findings, f)
		}
	}
	for id, dir := range c.first {
		subject := finding.Subject{Kind: "cpu-package", Name: id}
		seen, err := readThermalThrottling(h.Files, dir)
		if err != nil {
			doubts[subject] = err
			c.found = 0 // its processor may have been switched off
			continue
		}
		if c.packages[id] == nil {
			c.packages[id] = &thermalPackage{}
		}
		if f, ok := c.packages[id].judge(seen, now); ok {
			f.Check, f.Subject = thermalID, subject
			findings = append(findings, f)
		}
	}
	return findings, finding.Partial(doubts)
}

// find looks which zones that have a critical point, and which packages there are.
func (c *thermalCheck) find(files host.Files, parts []sensorPart) error {
	zones := thermalZones(files, parts)
	first, err := cpuPackages(files)
	if err != nil && !errors.Is(err, errNoThrottling) {
		return err
	}
	c.zones, c.first = zones, first
	return nil
}
