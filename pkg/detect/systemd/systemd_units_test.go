package systemd

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/systemd"
	"github.com/nodeagent/nodeagent/pkg/detect/checktest"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// unitsHost is a host whose systemd returns the units that the test puts into the second result.
func unitsHost(now *finding.Timestamp) (*host.Host, *systemd.Units) {
	units := &systemd.Units{}
	h := &host.Host{Clock: func() finding.Timestamp { return *now }}
	h.Systemd.Units = func(context.Context) (systemd.Units, error) { return *units, nil }
	return h, units
}

// The counts survive the agent, but not a reboot; a counter that goes back was reset.
func TestSystemdUnitsRestarts(t *testing.T) {
	now := finding.Timestamp{Boot: "a", SinceBoot: time.Hour}
	h, units := unitsHost(&now)
	store := checktest.StateStore{}
	expect := func(restarts uint32, want ...string) {
		t.Helper()
		now.SinceBoot += 30 * time.Second
		units.Running = []systemd.Unit{{Name: "a.service", Active: "active", Sub: "running", Restarts: restarts}}
		found, err := SystemdUnits(DefaultSystemdUnitsSettings(), store).Run(t.Context(), h) // another agent each time
		if diff := cmp.Diff(want, checktest.Reasons(found)); diff != "" || err != nil {
			t.Errorf("error %v (-want +got):\n%s", err, diff)
		}
	}
	expect(100)
	expect(102, "unit/a.service=UnitFlapping warning marginal")
	expect(0, "unit/a.service=UnitFlapping warning marginal")
	expect(1, "unit/a.service=UnitFlapping warning")
	now.Wall = now.Wall.AddDate(20, 0, 0)
	expect(1, "unit/a.service=UnitFlapping warning")
	now.SinceBoot += unitFlappingWindow - 2*time.Minute
	expect(1, "unit/a.service=UnitFlapping warning marginal")
	now.SinceBoot += time.Minute
	expect(1)
	now.SinceBoot += time.Hour
	expect(20)
	expect(50, "unit/a.service=UnitFlapping warning")
	now = finding.Timestamp{Boot: "b", SinceBoot: time.Hour}
	expect(60)
	store[unitRestartsKey] = []byte(`{"boot":"b","units":{"a.service":null}}`)
	expect(70)
}

func TestSystemdUnitsSettings(t *testing.T) {
	now := finding.Timestamp{Boot: "a", SinceBoot: time.Hour}
	h, units := unitsHost(&now)
	units.Failed = []systemd.Unit{{Name: "logrotate.service", TriggeredBy: []string{"logrotate.timer"}},
		{Name: "data.mount"}}
	tests := []struct {
		name     string
		settings SystemdUnitsSettings
		want     []string
		wrong    bool
	}{
		{name: "none", want: []string{"unit/logrotate.service=UnitFailed info", "unit/data.mount=UnitFailed warning"}},
		{name: "ignore", settings: SystemdUnitsSettings{Ignore: []string{"*.mount"}},
			want: []string{"unit/logrotate.service=UnitFailed info"}},
		{name: "critical", settings: SystemdUnitsSettings{Critical: []string{"logrotate.*"}},
			want: []string{"unit/logrotate.service=UnitFailed warning", "unit/data.mount=UnitFailed warning"}},
		{name: "malformed", settings: SystemdUnitsSettings{Critical: []string{"["}}, wrong: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			found, err := SystemdUnits(tt.settings, nil).Run(t.Context(), h)
			if diff := cmp.Diff(tt.want, checktest.Reasons(found)); diff != "" || (err != nil) != tt.wrong {
				t.Errorf("error %v (-want +got):\n%s", err, diff)
			}
		})
	}
}
