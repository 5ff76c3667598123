package npd

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/node-problem-detector/pkg/systemlogmonitor"

	"github.com/nodeagent/nodeagent/pkg/detect/npd"
)

// shipped returns the folder of node-problem-detector's own configuration files.
func shipped(t testing.TB) string {
	t.Helper()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/node-problem-detector").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	return filepath.Join(strings.TrimSpace(string(out)), "config")
}

func read(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// The agent can run every file that node-problem-detector ships, as its kind.
func TestShippedFiles(t *testing.T) {
	names, err := filepath.Glob(filepath.Join(shipped(t), "*.json"))
	if err != nil || len(names) < 20 {
		t.Fatalf("%d files, %v", len(names), err)
	}
	for _, name := range names {
		t.Run(filepath.Base(name), func(t *testing.T) {
			data := read(t, name)
			file, err := npd.Decode(name, data)
			if err != nil {
				t.Fatal(err)
			}
			if want := kindByName(filepath.Base(name)); file.Kind != want {
				t.Errorf("it is taken for a %s, not a %s", file.Kind, want)
			}
			var theirs systemlogmonitor.MonitorConfig
			if file.Kind == npd.LogMonitor && json.Valid(data) {
				if err := json.Unmarshal(data, &theirs); err != nil {
					t.Fatal(err)
				}
				(&theirs).ApplyDefaultConfiguration()
				if diff := cmp.Diff(theirs.WatcherConfig.PluginConfig, file.Log.PluginConfig); diff != "" {
					t.Error(diff)
				}
				if len(theirs.Rules) != len(file.Log.Rules) || theirs.BufferSize != file.Log.BufferSize ||
					theirs.Source != file.Log.Source {
					t.Errorf("read otherwise: %+v", file.Log)
				}
				for i, r := range theirs.Rules {
					if diff := cmp.Diff(r, file.Log.Rules[i].Rule); diff != "" {
						t.Error(diff)
					}
				}
			}
		})
	}
}

func kindByName(name string) npd.Kind {
	switch {
	case strings.Contains(name, "system-stats"):
		return npd.StatsMonitor
	case strings.Contains(name, "counter"), strings.Contains(name, "health-checker"),
		strings.Contains(name, "custom-plugin"),
		name == "iptables-mode-monitor.json", name == "network-problem-monitor.json",
		name == "windows-defender-monitor.json":
		return npd.PluginMonitor
	}
	return npd.LogMonitor
}
