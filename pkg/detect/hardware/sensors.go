package hardware

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
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

// sensors reads what the board itself alarms of, where the kernel has a driver for its sensors, and its power supplies:
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
// https://docs.kernel.org/hwmon/sysfs-interface.html, Documentation/ABI/testing/sysfs-class-power. On most servers
// the fans and power supplies are the BMC's affair and not the kernel's; those that are here answer in microseconds
// to milliseconds.
//
// Known false alarms: fan headers with no fan, inputs with no sensor and supplies with no cable alarm since ever, so
// that one only counts that this agent has seen well before; that is remembered over restarts. Alarms of voltages are
// not read: boards wire them at will. Sensors of processors (thermal reads their counts), of disks (disk-health;
// reading a disk's temperature is a request to it), of ACPI zones (thermal) and ACPI power meters (slow firmware
// calls) are not read.

const (
	sensorsID   = "sensors"
	hwmonRoot   = "/sys/class/hwmon"
	supplyRoot  = "/sys/class/power_supply"
	maxSensors  = 2000
	sensorsAnew = time.Hour // how long it is remembered which sensors the same chips have
)

// Sensors finds fans, sensors and power supplies that fail. Memory may be nil: then what failed before the agent
// started is not told.
func Sensors(memory detect.StateStore) detect.Check {
	c := &sensorsCheck{well: sensorsWell{memory: memory}}
	return detect.Check{
		ID: sensorsID, Domain: "hardware",
		Summary: "a fan, a temperature or a power supply of the machine alarms",
		Advice: "`sensors` and `ipmitool sdr` show the values. Replace the fan or power supply; a machine whose " +
			"supply is lost runs on the other one, or on a battery.",
		Doc: detect.Doc{
			Reads: []string{"/sys/class/hwmon/*: fan*_alarm, fan*_fault, temp*_crit_alarm, temp*_emergency_alarm, temp*_fault", "/sys/class/power_supply/*: online, status, health"},
			Why:   "A machine without a fan throttles and then shuts down; one on its battery does so soon.",
			Faults: []detect.Fault{
				{Reason: "FanFailed", Severity: finding.Warning, When: "a fan that was well before alarms, in 2 looks"},
				{Reason: "TemperatureAlarm", Severity: finding.Warning, When: "a sensor says that its temperature is " +
					"critical, in 2 looks"},
				{Reason: "SensorFailed", Severity: finding.Warning, When: "a temperature sensor that was well before " +
					"is broken, in 2 looks"},
				{Reason: "PowerSupplyFailed", Severity: finding.Warning, When: "a supply that was connected is not, " +
					"or a battery or UPS says that it is broken or feeds the machine, in 2 looks"},
			},
			FalseAlarms: "Headers without fans and inputs without sensors, which alarm since ever, are left out.",
		},
		Every: time.Minute, Deadline: 10 * time.Second,
		Policy: finding.Policy{Raise: finding.Hold{Looks: 2}, Clear: finding.Hold{Looks: 2}},
		Run: func(_ context.Context, h *host.Host) ([]finding.Finding, error) {
			return c.look(h)
		},
	}
}

// sensorsCheck remembers where the alarms are, and which were silent.
type sensorsCheck struct {
	found  time.Duration
	parts  []sensorPart
	alarms []sensorAlarm
	well   sensorsWell
}

func (c *sensorsCheck) look(h *host.Host) ([]finding.Finding, error) {
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
	if c.found == 0 || now-c.found > sensorsAnew || !slices.Equal(parts, c.parts) {
		alarms, err := findAlarms(h.Files, parts)
		if err != nil {
			return nil, err
		}
		c.alarms, c.parts, c.found = alarms, parts, now
	}
	if len(c.alarms) == 0 {
		return nil, finding.NotApplicable("the kernel knows no fan, board sensor or power supply")
	}
	c.well.load()
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
		if !a.isBad(text) {
			c.well.see(a.id())
		} else if !a.mustBeWell || c.well.was(a.id()) {
			faults[a.subject()] = a.finding(text)
		}
	}
	c.well.save()
	for subject := range faults {
		delete(doubts, subject) // what is known is enough
	}
	return slices.Collect(maps.Values(faults)), finding.Partial(doubts)
}

// sensorAlarm is one file that tells whether something is well.
type sensorAlarm struct {
	kind, name string // of the subject: fan, temperature-sensor, power-supply; the name is stable over boots
	file       string
	reason     string
	mustBeWell bool     // only counts after it was well
	good       []string // values that are well; without any, all are but those in bad
	bad        []string
}

func (a sensorAlarm) id() string { return a.name + " " + path.Base(a.file) }

func (a sensorAlarm) subject() finding.Subject { return finding.Subject{Kind: a.kind, Name: a.name} }

func (a sensorAlarm) isBad(text string) bool {
	return slices.Contains(a.bad, text) || len(a.good) > 0 && !slices.Contains(a.good, text)
}

func (a sensorAlarm) finding(text string) finding.Finding {
	return finding.Finding{
		Check: sensorsID, Subject: a.subject(), Severity: finding.Warning, Reason: a.reason,
		Message: fmt.Sprintf("%s says %s: %s", a.name, path.Base(a.file), checkkit.Sanitize(text, checkkit.MaxLine)),
		Facts:   map[string]string{"file": a.file},
	}
}

// sensorPart is a chip, a power supply or a thermal zone. Drivers come late and go, and their numbers are used again
// for others: what the folder leads to tells.
type sensorPart struct{ dir, target string }

// sensorParts lists what is there of a class of devices, those whose names begin with prefix.
func sensorParts(files host.Files, root, prefix string) ([]sensorPart, error) {
	names, err := files.List(root)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	slices.Sort(names)
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

// findAlarms lists all files that are worth reading.
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

// boardAlarms lists the alarms of one chip. One that others tell of has none.
func boardAlarms(files host.Files, dir string) []sensorAlarm {
	chip, err := files.Text(path.Join(dir, "name"))
	if err != nil || slices.Contains([]string{"coretemp", "k10temp", "zenpower", "acpitz", "power_meter", "nvme",
		"drivetemp"}, chip) {
		return nil
	}
	names, err := files.List(dir)
	if err != nil {
		return nil // it went away
	}
	if device, err := files.Link(path.Join(dir, "device")); err == nil {
		chip += " " + path.Base(device) // there may be several of its kind
	}
	slices.Sort(names)
	var alarms []sensorAlarm
	for _, name := range names {
		channel, attribute, _ := strings.Cut(name, "_")
		a := sensorAlarm{file: path.Join(dir, name), bad: []string{"1"}, name: sensorName(files, dir, chip, channel)}
		switch number := strings.TrimLeft(channel, "abcdefghijklmnopqrstuvwxyz"); {
		case channel == "fan"+number && (attribute == "alarm" || attribute == "fault" || attribute == "min_alarm"):
			a.kind, a.reason, a.mustBeWell = "fan", "FanFailed", true
		case channel == "temp"+number && (attribute == "crit_alarm" || attribute == "emergency_alarm"):
			a.kind, a.reason = "temperature-sensor", "TemperatureAlarm"
		case channel == "temp"+number && attribute == "fault":
			a.kind, a.reason, a.mustBeWell = "temperature-sensor", "SensorFailed", true
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
	online.file, online.mustBeWell, online.bad = path.Join(dir, "online"), true, []string{"0"}
	health.file, health.bad = path.Join(dir, "health"), []string{"Overheat", "Dead", "Over voltage", "Under voltage",
		"Unspecified failure", "Over current", "Hot", "Cold"}
	status.file, status.mustBeWell, status.bad = path.Join(dir, "status"), true, []string{"Discharging"}
	switch kind {
	case "Mains":
		return []sensorAlarm{online, health}
	case "UPS", "Battery":
		return []sensorAlarm{status, health}
	}
	return nil
}
