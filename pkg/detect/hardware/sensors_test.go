package hardware

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
	"github.com/nodeagent/nodeagent/pkg/detect/checktest"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

func TestMain(m *testing.M) { ownedtest.Main(m) }

// A failed fan is still reported after a restart of the agent, in the first run.
func TestSensorsSurviveTheAgent(t *testing.T) {
	h := &host.Host{Files: host.Files{Root: t.TempDir()}, Clock: func() finding.Timestamp {
		return finding.Timestamp{SinceBoot: 1}
	}}
	dir := filepath.Join(h.Files.Root, "sys/class/hwmon/hwmon0")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	kept := checktest.StateStore{}
	write("name", "nct6775")
	for _, step := range []struct {
		alarm string
		want  int
	}{{"1", 0}, {"0", 0}, {"1", 1}, {"0", 0}} {
		write("fan1_alarm", step.alarm)
		findings, err := Sensors(kept).Run(t.Context(), h)
		if err != nil || len(findings) != step.want {
			t.Errorf("alarm %s: %+v, %v", step.alarm, findings, err)
		}
	}
}
