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
// and, for one processor of each package (Intel), whose counts contain those of its cores,
//
//	/sys/devices/system/cpu/cpu0/topology/physical_package_id                       0
//	/sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_count            12      since boot
//	/sys/devices/system/cpu/cpu0/thermal_throttle/package_throttle_total_time_ms    340     since boot (Linux 5.8)
//
// https://docs.kernel.org/driver-api/thermal/sysfs-api.html, Documentation/ABI/testing/sysfs-devices-system-cpu
//
// The kernel adds the time when a spell of throttling ends: a spell counted without time, which neither ends nor is
// followed by another for a minute, is still going on. A spell shorter than a tick (4 ms) has no time either and looks
// the same; it is not reported for longer than half an hour.

const (
	thermalNear    = 5_000  // thousandths of a degree below the critical point
	thermalKeep    = 10_000 // cleared below this
	thermalAbsurd  = 200_000
	thermalShare   = 1 // percent of the time throttled
	thermalFor     = 10 * time.Minute
	thermalOpen    = 20 * time.Minute // how long a spell without an end is believed
	thermalRefresh = time.Hour        // how long the list of the same zones and packages is used
)

// Thermal finds machines that are too hot.
func Thermal() detect.Check {
	c := &thermalCheck{packages: make(map[string]*thermalPackage)}
	return detect.Check{
		ID: "thermal", Domain: "hardware",
		Summary: "the machine is too hot: it runs slower, or is about to shut down",
		Advice: "Check the fans, the filters and the temperature of the room (`ipmitool sdr type Fan`, `sensors`); " +
			"if it is one machine alone, check its heat sink. Drain it before the kernel shuts it down.",
		Doc: detect.Doc{
			Reads: []string{"/sys/class/thermal/thermal_zone*",
				"/sys/devices/system/cpu/cpu*/thermal_throttle/package_throttle_*, of one processor of each package"},
			Why: "A throttled processor makes all pods slow without any sign in them; a critical temperature ends " +
				"all of them at once.",
			Faults: []detect.Fault{
				{Reason: "CPUThrottled", Severity: finding.Warning, When: "a processor package was throttled for 1 % " +
					"of a minute, in two minutes in a row, or still is; for 10 minutes after the last time. A single " +
					"short spell is normal"},
				{Reason: "TemperatureHigh", Severity: finding.Warning, When: "a zone is within 5 °C of its critical " +
					"point for a minute; cleared 10 °C below. Never fatal: where the kernel did not shut down, a " +
					"reading above the point is a sensor's error"},
			},
			FalseAlarms: "Some boards set critical points that they reach in normal use. Zones with absurd critical " +
				"points (0 or less, or above 200 °C), disabled ones and those without a reading are not evaluated.",
		},
		CounterBased: true,
		Every:        time.Minute,
		Wakes:        []detect.Wake{checkkit.KernelWake()},
		Policy:       finding.Policy{Raise: finding.Hold{Runs: 2}},
		Run:          c.run,
	}
}

// thermalCheck keeps the files to read, and the earlier counts.
type thermalCheck struct {
	listed   time.Duration // uptime
	parts    []sensorPart
	zones    []thermalZone
	first    map[string]string // package to the folder of one of its processors
	packages map[string]*thermalPackage
}

func (c *thermalCheck) run(_ context.Context, h *host.Host) ([]finding.Finding, error) {
	now := h.Clock().SinceBoot
	parts, err := sensorParts(h.Files, thermalRoot, "thermal_zone")
	if err != nil {
		return nil, err
	}
	if c.listed == 0 || now-c.listed > thermalRefresh || !slices.Equal(parts, c.parts) {
		if c.first, err = cpuPackages(h.Files); err != nil && !errors.Is(err, errNoThrottling) {
			return nil, err
		}
		c.zones, c.listed, c.parts = thermalZones(h.Files, parts), now, parts
	}
	if len(c.zones) == 0 && len(c.first) == 0 {
		return nil, finding.NotApplicable(
			"there is neither a zone with a critical temperature nor a processor that counts throttling")
	}
	var results checkkit.Results
	for _, z := range c.zones {
		f, ok, err := z.evaluate(h.Files)
		results.Add(f, !results.Doubt(z.subject(), err) && ok)
	}
	for id, dir := range c.first {
		subject := finding.Subject{Kind: "cpu-package", Name: id}
		counts, err := readThermalThrottling(h.Files, dir)
		if results.Doubt(subject, err) {
			c.listed = 0 // its processor may have been switched off
			continue
		}
		if c.packages[id] == nil {
			c.packages[id] = &thermalPackage{}
		}
		f, ok := c.packages[id].evaluate(counts, now)
		f.Subject = subject
		results.Add(f, ok)
	}
	return results.Done()
}
