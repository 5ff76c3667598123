package inside

import (
	"slices"
	"testing"
	"time"
)

// TestSensors: a fan, a temperature sensor, the mains and a UPS of a board fail and recover, and a thermal zone gets
// nearly as hot as the kernel allows.
func TestSensors(t *testing.T) {
	needGuest(t)
	t.Parallel()
	a, stop := start(t, t.TempDir(), "checks: {sensors: {every: 2s}, thermal: {every: 2s}}\n")
	defer stop()
	insert(t, "guest_sensors") // its driver is loaded late
	a.await(time.Minute, "an observation of healthy sensors", func(s status) bool {
		return slices.ContainsFunc(s.Checks, func(c checkStatus) bool {
			return c.Check == "sensors" && c.Status == "healthy"
		})
	})
	zone := run(t, "sh", "-c", "grep -l guest_zone /sys/class/thermal/thermal_zone*/type | cut -d / -f 5")
	for _, fault := range []struct {
		parameter, bad, good         string
		check, reason, kind, subject string
	}{
		{"fan_alarm", "1", "0", "sensors", "FanFailed", "fan", "guest guest_sensors fan1 (CPU Fan)"},
		{"fan_fault", "1", "0", "sensors", "FanFailed", "fan", "guest guest_sensors fan1 (CPU Fan)"},
		{"temp_crit_alarm", "1", "0", "sensors", "TemperatureAlarm", "temperature-sensor",
			"guest guest_sensors temp1 (Board)"},
		{"temp_fault", "1", "0", "sensors", "SensorFailed", "temperature-sensor", "guest guest_sensors temp1 (Board)"},
		{"mains_online", "0", "1", "sensors", "PowerSupplyFailed", "power-supply", "guest_mains"},
		{"ups_status", "2", "4", "sensors", "PowerSupplyFailed", "power-supply", "guest_ups"}, // Discharging, Full
		{"ups_health", "3", "1", "sensors", "PowerSupplyFailed", "power-supply", "guest_ups"}, // Dead, Good
		{"zone_temp", "96000", "89000", "thermal", "TemperatureHigh", "thermal-zone", zone},
	} {
		is := func(f believed) bool {
			return f.Reason == fault.reason && f.Severity == "warning" && f.Subject.Kind == fault.kind &&
				f.Subject.Name == fault.subject
		}
		setParameter(t, "guest_sensors", fault.parameter, fault.bad)
		a.awaitFound(fault.check, is, true)
		setParameter(t, "guest_sensors", fault.parameter, fault.good)
		a.awaitFound(fault.check, is, false)
	}
}
