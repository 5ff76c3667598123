package hardware

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// sensors reads the alarms of power supplies and, if the kernel has a driver for them, of the board's sensors:
//
//	/sys/class/hwmon/hwmon2/name                  nct6775
//	                        fan2_label            CPU Fan          optional
//	                        fan2_alarm            0                1: slower than its limit; fan2_fault 1: broken
//	                        temp1_crit_alarm      0                1: critical, also temp1_emergency_alarm
//	                        temp1_fault           0                1: no sensor there, or it is broken
//	/sys/class/power_supply/ACAD/type             Mains            also USB, UPS, Battery
//	                             online           1
//	/sys/class/power_supply/ups/health            Good             Overheat, Dead, Over voltage, …
//	                            status            Full             Discharging: the UPS feeds the machine
//
// https://docs.kernel.org/hwmon/sysfs-interface.html, Documentation/ABI/testing/sysfs-class-power. On most servers the
// BMC has the fans and power supplies; those of the kernel answer in microseconds to milliseconds. The check does not
// read alarms of voltages, which boards wire arbitrarily, nor sensors of processors (thermal reads their counts), of
// disks (disk-health; reading a disk's temperature is a request to it), of ACPI zones (thermal) and ACPI power meters
// (slow firmware calls).

const (
	hwmonRoot  = "/sys/class/hwmon"
	supplyRoot = "/sys/class/power_supply"
	maxSensors = 2000

	sensorsRefresh = time.Hour // how long the list of the sensors of the same chips is used
)

// Sensors finds fans, sensors and power supplies that fail. The store may be nil: then failures from before the agent's
// start are not reported.
func Sensors(store detect.StateStore) detect.Check {
	c := &sensorsCheck{healthy: healthySensors{saved: detect.Saved[[]string]{Store: store, Key: sensorsKey}}}
	return detect.Check{
		ID: "sensors", Domain: "hardware",
		Summary: "a fan, a temperature or a power supply of the machine raises an alarm",
		Advice: "`sensors` and `ipmitool sdr` show the values. Replace the fan or power supply; a machine that lost " +
			"a supply runs on the other one, or on a battery.",
		Doc: detect.Doc{
			Reads: []string{hwmonRoot +
				"/*: fan*_alarm, fan*_fault, temp*_crit_alarm, temp*_emergency_alarm, temp*_fault", supplyRoot +
				"/*: online, status, health"},
			Why: "A machine without a fan throttles and then shuts down; one on its battery does so soon.",
			Faults: []detect.Fault{
				{Reason: "FanFailed", Severity: finding.Warning,
					When: "a fan that was healthy before has an alarm, in 2 runs"},
				{Reason: "TemperatureAlarm", Severity: finding.Warning,
					When: "a sensor reports a critical temperature, in 2 runs"},
				{Reason: "SensorFailed", Severity: finding.Warning, When: "a temperature sensor that was healthy " +
					"before is broken, in 2 runs"},
				{Reason: "PowerSupplyFailed", Severity: finding.Warning, When: "a supply that was connected is not, " +
					"or a battery or UPS reports that it is broken or feeds the machine, in 2 runs"},
			},
			FalseAlarms: "Fan headers without a fan, inputs without a sensor and supplies without a cable have an " +
				"alarm at all times: they are not reported until the agent has seen them healthy once, which it " +
				"remembers across restarts.",
		},
		Every:  time.Minute,
		Policy: finding.Policy{Raise: finding.Hold{Runs: 2}, Clear: finding.Hold{Runs: 2}},
		Run:    c.run,
	}
}

// sensorsCheck keeps the places of the alarms, and which sensors were healthy.
type sensorsCheck struct {
	listed  time.Duration // uptime
	parts   []sensorPart
	alarms  []sensorAlarm
	healthy healthySensors
}

func (c *sensorsCheck) run(_ context.Context, h *host.Host) ([]finding.Finding, error) {
	now := h.Clock().SinceBoot
	chips, err := sensorParts(h.Files, hwmonRoot, "")
	if err != nil {
		return nil, err
	}
	supplies, err := sensorParts(h.Files, supplyRoot, "")
	if err != nil {
		return nil, err
	}
	parts := slices.Concat(chips, supplies)
	if c.listed == 0 || now-c.listed > sensorsRefresh || !slices.Equal(parts, c.parts) {
		alarms, err := findAlarms(h.Files, parts)
		if err != nil {
			return nil, err
		}
		c.alarms, c.parts, c.listed = alarms, parts, now
	}
	if len(c.alarms) == 0 {
		return nil, finding.NotApplicable("the kernel knows no fan, board sensor or power supply")
	}
	c.healthy.load()
	faults := make(map[finding.Subject]finding.Finding)
	doubts := make(map[finding.Subject]error)
	for _, a := range c.alarms {
		text, err := h.Files.Text(a.file)
		if hasNoReading(err) || err == nil && text == "" {
			continue
		}
		if err != nil {
			doubts[a.subject()] = err
			continue
		}
		if !slices.Contains(a.bad, text) {
			c.healthy.add(a.id())
		} else if !a.onceHealthy || c.healthy.ids[a.id()] {
			faults[a.subject()] = a.finding(text)
		}
	}
	c.healthy.save()
	for subject := range faults {
		delete(doubts, subject) // its fault is known
	}
	return slices.Collect(maps.Values(faults)), finding.Partial(doubts)
}

// sensorAlarm is one file that shows whether a part is healthy.
type sensorAlarm struct {
	kind, name  string // of the subject: fan, temperature-sensor, power-supply; the name is stable over boots
	file        string
	reason      string
	onceHealthy bool // only counts after it was healthy
	bad         []string
}

func (a sensorAlarm) id() string { return a.name + " " + path.Base(a.file) }

func (a sensorAlarm) subject() finding.Subject { return finding.Subject{Kind: a.kind, Name: a.name} }

func (a sensorAlarm) finding(text string) finding.Finding {
	return finding.Finding{
		Subject: a.subject(), Severity: finding.Warning, Reason: a.reason,
		Message: fmt.Sprintf("%s reports %s: %s", a.name, path.Base(a.file), checkkit.Sanitize(text, checkkit.MaxLine)),
		Facts:   map[string]string{"file": a.file},
	}
}

// sensorPart is a chip, a power supply or a thermal zone. Drivers come late and go, and their numbers are reused: the
// target of the link identifies it.
type sensorPart struct{ dir, target string }

// sensorParts lists the devices of a class whose names begin with prefix.
func sensorParts(files host.Files, root, prefix string) ([]sensorPart, error) {
	names, err := checkkit.ListSorted(files, root)
	if err != nil {
		return nil, err
	}
	var parts []sensorPart
	for _, name := range names {
		if strings.HasPrefix(name, prefix) {
			dir := path.Join(root, name)
			target, _ := files.Link(dir)
			parts = append(parts, sensorPart{dir, target})
		}
	}
	return parts, nil
}

// findAlarms lists the files to read.
func findAlarms(files host.Files, parts []sensorPart) ([]sensorAlarm, error) {
	var alarms []sensorAlarm
	for _, p := range parts {
		if path.Dir(p.dir) == hwmonRoot {
			alarms = append(alarms, boardAlarms(files, p.dir)...)
		} else {
			alarms = append(alarms, supplyAlarms(files, p.dir)...)
		}
	}
	if len(alarms) > maxSensors {
		return nil, fmt.Errorf("list %s: more than %d sensors", hwmonRoot, maxSensors)
	}
	return alarms, nil
}

// boardAlarms lists the alarms of one chip; none if another check covers the chip.
func boardAlarms(files host.Files, dir string) []sensorAlarm {
	chip, err := files.Text(path.Join(dir, "name"))
	if err != nil || slices.Contains([]string{"coretemp", "k10temp", "zenpower", "acpitz", "power_meter", "nvme",
		"drivetemp"}, chip) {
		return nil
	}
	names, err := checkkit.ListSorted(files, dir)
	if err != nil {
		return nil // it was removed
	}
	if device, err := files.Link(path.Join(dir, "device")); err == nil {
		chip += " " + path.Base(device) // there may be several of its kind
	}
	var alarms []sensorAlarm
	for _, name := range names {
		channel, attribute, _ := strings.Cut(name, "_")
		a := sensorAlarm{file: path.Join(dir, name), bad: []string{"1"}, name: sensorName(files, dir, chip, channel)}
		switch number := strings.TrimLeft(channel, "abcdefghijklmnopqrstuvwxyz"); {
		case channel == "fan"+number && (attribute == "alarm" || attribute == "fault" || attribute == "min_alarm"):
			a.kind, a.reason, a.onceHealthy = "fan", "FanFailed", true
		case channel == "temp"+number && (attribute == "crit_alarm" || attribute == "emergency_alarm"):
			a.kind, a.reason = "temperature-sensor", "TemperatureAlarm"
		case channel == "temp"+number && attribute == "fault":
			a.kind, a.reason, a.onceHealthy = "temperature-sensor", "SensorFailed", true
		default:
			continue
		}
		alarms = append(alarms, a)
	}
	return alarms
}

// sensorName names a channel of a chip for people: "nct6775 nct6775.656 fan2 (CPU Fan)".
func sensorName(files host.Files, dir, chip, channel string) string {
	name := checkkit.Sanitize(chip, checkkit.MaxLine) + " " + checkkit.Sanitize(channel, checkkit.MaxLine)
	if label, err := files.Text(path.Join(dir, channel+"_label")); err == nil && label != "" {
		name += " (" + checkkit.Sanitize(label, checkkit.MaxLine) + ")"
	}
	return name
}

// supplyAlarms lists the alarms of one power supply. Those of peripheral devices, such as a mouse, have none.
func supplyAlarms(files host.Files, dir string) []sensorAlarm {
	kind, err := files.Text(path.Join(dir, "type"))
	if scope, scopeErr := files.Text(path.Join(dir, "scope")); err != nil || scopeErr == nil && scope == "Device" {
		return nil
	}
	supply := sensorAlarm{kind: "power-supply", name: checkkit.Sanitize(path.Base(dir), checkkit.MaxLine),
		reason: "PowerSupplyFailed"}
	online, health, status := supply, supply, supply
	online.file, online.onceHealthy, online.bad = path.Join(dir, "online"), true, []string{"0"}
	health.file, health.bad = path.Join(dir, "health"), []string{"Overheat", "Dead", "Over voltage", "Under voltage",
		"Unspecified failure", "Over current", "Hot", "Cold"}
	status.file, status.onceHealthy, status.bad = path.Join(dir, "status"), true, []string{"Discharging"}
	switch kind {
	case "Mains":
		return []sensorAlarm{online, health}
	case "UPS", "Battery":
		return []sensorAlarm{status, health}
	}
	return nil
}
