package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/nodeagent/nodeagent/pkg/detect/checks"
	"github.com/nodeagent/nodeagent/pkg/detect/system/load"
)

func TestDefaultIsValid(t *testing.T) {
	text, err := Default().YAML()
	if err != nil {
		t.Fatal(err)
	}
	c, err := Parse("defaults", text)
	if err != nil {
		t.Fatalf("what is printed as defaults cannot be read:\n%v", err)
	}
	if diff := cmp.Diff(Default(), c, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("(-default +read again):\n%s", diff)
	}
}

func TestParseOverDefaults(t *testing.T) {
	c, err := Parse("f", []byte("checks:\n  load: {every: 1m, loadPerCPU: 8}\nremediate: {mode: on}\n"))
	if err != nil {
		t.Fatal(err)
	}
	load := *checks.SettingsOf[load.Settings](c.Checks, "load")
	if load.Every != time.Minute || load.Settings.LoadPerCPU != 8 || !load.Enabled || c.Remediate.Mode != "on" ||
		c.Remediate.PodsPerHour == 0 {
		t.Errorf("got %+v, %+v", load, c.Remediate)
	}
}

// TestMistakes: all mistakes are reported at once, each with file and line.
func TestMistakes(t *testing.T) {
	for _, test := range []struct{ name, text, want string }{
		{"unknown key", "nodeName: a\nchecks:\n  lod: {}\n", `f:3: unknown key "lod"`},
		{"unknown setting of a check", "checks:\n  load:\n    loadPerCpu: 3\n", `f:3: unknown key "loadPerCpu"`},
		{"wrong type", "checks:\n  load:\n    enabled: perhaps\n", "f:3: cannot unmarshal"},
		{"duration without unit", "checks:\n  load:\n    every: 30\n",
			"f:3: cannot unmarshal !!int `30` into time.Duration"},
		{"negative duration", "inspect:\n  grace: -1m\n", "f:2: inspect.grace"},
		{"negative count", "inspect:\n  passes: -1\n", "f:2: inspect.passes: -1: must not be negative"},
		{"severity", "checks:\n  load:\n    severity: bad\n",
			`f:3: checks.load.severity: "bad": a severity is fatal, warning or info`},
		{"mode", "\nremediate:\n  mode: yes-please\n", `f:3: remediate.mode: "yes-please"`},
		{"mode of a kind", "remediate:\n  kinds:\n    mount: maybe\n",
			"f:3: remediate.kinds.mount: \"maybe\""},
		{"relative path", "paths:\n  kubeletRoot: kubelet\n",
			`f:2: paths.kubeletRoot: "kubelet" is not an absolute path`},
		{"cgroup driver", "paths:\n  cgroupDriver: cgroupsfs\n",
			`f:2: paths.cgroupDriver: "cgroupsfs": want systemd or cgroupfs`},
		{"state directory", "stateDir: here\n", `f:1: stateDir: "here" is not an absolute path`},
		{"metrics for the world", "report:\n  metrics: {listen: '0.0.0.0:10680'}\n",
			"f:2: report.metrics.listen: must be address:port of the loopback interface"},
		{"vocabulary", "report:\n  conditions:\n    vocabulary: mine\n", "f:3: report.conditions.vocabulary"},
		{"DaemonSet name", "checks:\n  critical-daemonsets:\n    daemonSets: [a/b/c]\n",
			"f:3: checks.critical-daemonsets.daemonSets: \"a/b/c\""},
		{"not YAML", "a: [", "f:"},
		{"two documents", "nodeName: a\n---\nnodeName: b\n", "f: more than one document"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := Parse("f", []byte(test.text))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %s", err, test.want)
			}
			if err != nil && strings.Contains(test.want, "unknown key") && err.Error() != test.want {
				t.Errorf("got %v, want %s and no word more", err, test.want)
			}
		})
	}
	_, err := Parse("f", []byte("inspect: {passes: -1}\nstateDir: here\nsocket: there\n"))
	if err == nil || len(strings.Split(err.Error(), "\n")) != 3 {
		t.Errorf("three mistakes, got:\n%v", err)
	}
	const once = "f:1: fleet.slots: must be at least 1"
	if _, err = Parse("f", []byte("fleet: {slots: -1}\n")); err == nil || err.Error() != once {
		t.Errorf("got %v, want %s and no word more", err, once)
	}
}

// TestMistakesOfChecks: mistakes in several checks are reported together, in the order of the lines.
func TestMistakesOfChecks(t *testing.T) {
	_, err := Parse("f",
		[]byte("checks:\n  zombies: {a: 1}\n  lod:\n    b: 1\n  load: {every: 30}\n  nothing:\n  dns:\n"))
	want := "f:2: unknown key \"a\"\nf:3: unknown key \"lod\"\nf:5: cannot unmarshal !!int `30` into " +
		"time.Duration\nf:6: unknown key \"nothing\""
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	c, err := Parse("f", []byte("checks:\n"))
	if diff := cmp.Diff(Default(), c); diff != "" || err != nil {
		t.Errorf("error %v; no checks named are the default (-want +got):\n%s", err, diff)
	}
}

// TestRemovedChecks: a configuration of an earlier release still starts the agent, which reports the ignored settings.
func TestRemovedChecks(t *testing.T) {
	c, err := Parse("f", []byte("checks:\n  load: {loadPerCPU: 8}\n  entropy:\n    every: 2m\n    what: ever\n  "+
		"address-overlap:\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"line 3: checks.entropy is ignored: this check was removed: since Linux 5.18 the kernel's random numbers do not run out",
		"line 6: checks.address-overlap is ignored: this check was removed: a node knows only the part of the " +
			"cluster's ranges that its own pods get",
	}
	if diff := cmp.Diff(want, c.Ignored()); diff != "" {
		t.Error(diff)
	}
	if checks.SettingsOf[load.Settings](c.Checks, "load").Settings.LoadPerCPU != 8 {
		t.Error("the rest of the configuration is lost")
	}
	text, err := c.YAML()
	if err != nil || strings.Contains(string(text), "entropy") {
		t.Errorf("error %v; a check that was removed is printed", err)
	}
}

// TestRemovedSetting: the same for a setting.
func TestRemovedSetting(t *testing.T) {
	c, err := Parse("f", []byte("nodeProblemDetector: {systemStats: true, kernelOnly: true}\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"nodeProblemDetector.systemStats is ignored: this setting was removed: node_exporter serves the " +
		"metrics of system stats monitors"}
	if diff := cmp.Diff(want, c.Ignored()); diff != "" {
		t.Error(diff)
	}
	if c.NodeProblemDetector.KernelOnly != true || Default().Ignored() != nil {
		t.Error("the rest of the configuration is lost")
	}
}

func TestLoad(t *testing.T) {
	if _, err := Load(filepath.Join(t.TempDir(), "missing.yaml")); err == nil ||
		!strings.Contains(err.Error(), "missing.yaml") {
		t.Errorf("a file that was named and is not there: %v", err)
	}
	huge := filepath.Join(t.TempDir(), "huge.yaml")
	if err := os.WriteFile(huge, make([]byte, maxFile+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(huge); err == nil {
		t.Error("a huge file was read")
	}
	empty := filepath.Join(t.TempDir(), "empty.yaml")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Load(empty)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Default(), c); diff != "" {
		t.Errorf("an empty file is the default (-want +got):\n%s", diff)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("checks:\n  load: {every: 1m}\n"))
	f.Add([]byte("paths: {initPID: 1}\n---\n"))
	f.Fuzz(func(_ *testing.T, text []byte) {
		_, _ = Parse("f", text) // an error or a configuration, no panic
	})
}
