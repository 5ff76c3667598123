package hardware

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"syscall"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

const (
	thermalRoot     = "/sys/class/thermal"
	maxThermalZones = 500
	maxThermalTrips = 12 // THERMAL_MAX_TRIPS
)

// thermalZone is one zone that has a critical point. Temperatures are in thousandths of a degree.
type thermalZone struct {
	name, kind string
	critical   int
}

func (z thermalZone) subject() finding.Subject {
	return finding.Subject{Kind: "thermal-zone", Name: z.name}
}

// thermalZones returns the zones with a plausible critical point.
func thermalZones(files host.Files, parts []sensorPart) []thermalZone {
	var zones []thermalZone
	for _, p := range parts[:min(len(parts), maxThermalZones)] {
		dir := p.dir
		critical, ok := criticalPoint(files, dir)
		if !ok || critical <= 0 || critical > thermalAbsurd {
			continue
		}
		kind, err := files.Text(path.Join(dir, "type"))
		if err != nil {
			kind = "unknown"
		}
		zones = append(zones, thermalZone{path.Base(dir), checkkit.Sanitize(kind, checkkit.MaxLine), critical})
	}
	return zones
}

// criticalPoint returns the temperature at which the kernel shuts the machine down for a zone.
func criticalPoint(files host.Files, dir string) (int, bool) {
	for trip := range maxThermalTrips {
		kind, err := files.Text(path.Join(dir, fmt.Sprintf("trip_point_%d_type", trip)))
		if err != nil {
			return 0, false
		}
		if kind != "critical" {
			continue
		}
		at, err := checkkit.ReadNumber(files, path.Join(dir, fmt.Sprintf("trip_point_%d_temp", trip)))
		return at, err == nil
	}
	return 0, false
}

// evaluate compares the temperature with the critical point.
func (z thermalZone) evaluate(files host.Files) (finding.Finding, bool, error) {
	temperature, err := checkkit.ReadNumber(files, path.Join(thermalRoot, z.name, "temp"))
	if hasNoReading(err) {
		return finding.Finding{}, false, nil
	}
	if err != nil {
		return finding.Finding{}, false, err
	}
	if temperature < z.critical-thermalKeep || temperature > thermalAbsurd {
		return finding.Finding{}, false, nil
	}
	return finding.Finding{
		Subject: z.subject(), Severity: finding.Warning, Reason: "TemperatureHigh",
		Message: fmt.Sprintf("%s is at %d °C; the kernel shuts the machine down at %d °C", z.kind, temperature/1000,
			z.critical/1000),
		Facts: map[string]string{"type": z.kind, "milliCelsius": strconv.Itoa(temperature),
			"criticalMilliCelsius": strconv.Itoa(z.critical)},
		BelowRaise: temperature < z.critical-thermalNear,
	}, true, nil
}

// hasNoReading reports whether a sensor has no reading now: it is disabled, asleep, removed, or its card is off.
func hasNoReading(err error) bool {
	return errors.Is(err, syscall.ENODATA) || errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EINVAL) ||
		errors.Is(err, syscall.ENODEV) || errors.Is(err, syscall.ENXIO) || errors.Is(err, fs.ErrNotExist)
}
