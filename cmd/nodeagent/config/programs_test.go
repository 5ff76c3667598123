package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/internal/host/hosttest/executable"
	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
)

// Programs that other users can change are reported with the place of their configuration, owner and mode; such a
// configuration is in force all the same.
func TestPrograms(t *testing.T) {
	t.Cleanup(ownedtest.Temp())
	dir, err := os.MkdirTemp("", "programs")
	if err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]os.FileMode{"good": 0o755, "bad": 0o777} {
		program := filepath.Join(dir, name)
		if err := errors.Join(executable.Write(program, []byte("#!/bin/sh\n")), os.Chmod(program, mode)); err != nil {
			t.Fatal(err)
		}
	}
	monitor := filepath.Join(dir, "monitor.json")
	config := filepath.Join(dir, "config.yaml")
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	rules := func(program string) string {
		return `{"plugin":"custom","source":"s","pluginConfig":{},"metricsReporting":false,"conditions":[],` +
			`"rules":[{"type":"temporary","reason":"Bad","path":"` + filepath.Join(dir, program) + `"}]}`
	}
	plugins := func(first, second string) string {
		return "plugins:\n- {name: a, reason: Ab, path: " + filepath.Join(dir, first) +
			"}\n- name: b\n  reason: Bc\n  path: " +
			filepath.Join(dir, second) + "\nnodeProblemDetector:\n  files: [" + monitor + "]\n"
	}
	for name, test := range map[string]struct {
		config, rules string
		want          []string
	}{
		"all good": {plugins("good", "good"), rules("good"), nil},
		"not there yet": {plugins("good", "later"), rules("later"), []string{config + ":5: plugins.1.path: " + dir + "/later is not run",
			monitor + ":1:143: rules[0].path: " + dir + "/later is not run"}},
		"a plugin": {plugins("good", "bad"), rules("good"), []string{config + ":5: plugins.1.path", dir +
			"/bad belongs to user 0, mode 0777"}},
		"a monitor's": {plugins("good", "good"), rules("bad"), []string{monitor + ":1:143: rules[0].path", dir +
			"/bad belongs to user 0, mode 0777"}},
		"of both all are named": {plugins("bad", "bad"), rules("bad"), []string{"plugins.0", "plugins.1", "rules[0]"}},
	} {
		t.Run(name, func(t *testing.T) {
			write(monitor, test.rules)
			write(config, test.config)
			if _, err := Load(config); err != nil {
				t.Fatalf("the configuration itself: %v", err)
			}
			if read := ReadMonitors(mustLoad(t, config).NodeProblemDetector); len(read.Broken) > 0 {
				t.Fatal(read.Broken)
			}
			err := Verify(config)
			if (err != nil) != (test.want != nil) {
				t.Fatalf("got %v", err)
			}
			for _, part := range test.want {
				if os.Geteuid() == 0 && !strings.Contains(err.Error(), part) {
					t.Errorf("%v does not say %q", err, part)
				}
			}
		})
	}
}

// TestVerifyMonitors: each node-problem-detector file, rule and program without effect is reported with its place.
func TestVerifyMonitors(t *testing.T) {
	dir := t.TempDir()
	monitor, config := filepath.Join(dir, "m.json"), filepath.Join(dir, "config.yaml")
	const log = `{"plugin":"kmsg","logPath":"/dev/kmsg","lookback":"5m","source":"k",` + "\n"
	const custom = `{"plugin":"custom","source":"c","conditions":[{"type":"B","reason":"BOk"}],` + "\n"
	for name, test := range map[string]struct{ monitor, want string }{
		"fine":            {log + `"conditions":[],"rules":[{"type":"temporary","reason":"X","pattern":"x"}]}`, ""},
		"look-ahead":      {log + `"rules":[{"type":"temporary","reason":"X","pattern":"foo(?!bar)"}]}`, "m.json:2:53: rules[0].pattern"},
		"second rule":     {log + `"rules":[{"type":"temporary","reason":"X","pattern":"x"},` + "\n" + `{"type":"temporary","reason":"Y","pattern":"["}]}`, "m.json:3:"},
		"undeclared":      {log + `"rules":[{"type":"permanent","condition":"A","reason":"X","pattern":"x"}]}`, "m.json:2:"},
		"undeclared, own": {custom + `"rules":[{"type":"permanent","condition":"A","reason":"X","path":"/bin/true"}]}`, "m.json:2:"},
		"unknown type":    {log + `"rules":[{"type":"perpetual","condition":"A","reason":"X","pattern":"x"}]}`, `"perpetual" is no type`},
		"no JSON":         {log + `"rules":[}`, "m.json:2:"},
		"missing":         {"", "config.yaml:2: nodeProblemDetector.files.1"},
		"no program":      {custom + `"rules":[{"type":"permanent","condition":"B","reason":"X","path":"/nonexistent/check.sh"}]}`, "/nonexistent/check.sh is not run"},
		"relative":        {custom + `"rules":[{"type":"temporary","reason":"X","path":"./config/check.sh"}]}`, "./config/check.sh is not run"},
		"a folder":        {custom + `"rules":[{"type":"temporary","reason":"X","path":"/usr/bin"}]}`, "not a regular file"},
		"counter":         {custom + `"rules":[{"type":"temporary","reason":"X","path":"/x/log-counter","args":["--journald-source=k","--pattern=["]}]}`, "m.json:2:"},
		"health-checker":  {custom + `"rules":[{"type":"temporary","reason":"X","path":"/x/health-checker","args":["--component=kubelet"]}]}`, ""},
		"kubelet's":       {strings.Replace(custom, `"B"`, `"DiskPressure"`, 1) + `"rules":[]}`, "m.json:1:55: conditions[0].type: kubelet itself reports DiskPressure"},
		"the network's":   {strings.Replace(custom, `"B"`, `"NetworkUnavailable"`, 1) + `"rules":[]}`, "m.json:1:55: conditions[0].type: the network plugin"},
		"twice":           {strings.Replace(log, "\n", `"conditions":[{"type":"A"},`+"\n"+`{"type":"A"}],`, 1) + `"rules":[]}`, `m.json:2:9: conditions[1].type: "A" is declared twice`},
		"no pattern":      {log + `"rules":[{"type":"temporary","reason":"X"}]}`, "m.json:2:10: rules[0]: the rule has no pattern"},
		"unknown key":     {log + `"rules":[{"type":"temporary","reason":"X","pattern":"x","patern":"y"}]}`, `m.json:2:66: rules[0].patern: unknown key "patern"`},
		"unknown at top":  {log + `"_comment":"z","lookBack":"1m","buffersize":3,"rule":[],"rules":[]}`, `m.json:2:54: rule: unknown key`},
		"unknown, own":    {custom + `"pluginConfig":{"invoke_intervall":"3s"},"rules":[]}`, `m.json:2:36: pluginConfig.invoke_intervall: unknown key`},
		"stats":           {`{"disk":{"metricsConfigs":{}}}`, ""},
		"interval, own":   {custom + `"rules":[{"type":"temporary","reason":"X","path":"/x/health-checker","invoke_interval":"9s"}]}`, "m.json:2:88: rules[0].invoke_interval: unknown key"},
		"no log":          {strings.Replace(log, `kmsg"`, `filelog","pluginConfig":{"timestamp":"^.{15}","message":"x","timestampFormat":"Jan _2 15:04:05"}`, 1) + `"rules":[]}`, "m.json:1:119: logPath: the log is not read: /dev/kmsg is not a regular file"},
		"no time":         {strings.Replace(log, `kmsg"`, `filelog","pluginConfig":{"timestamp":"^.{15}","message":"x","timestampFormat":"%b %d %T"}`, 1) + `"rules":[]}`, `"%b %d %T" is no time in Go's form`},
		"kubelet's Ready": {strings.Replace(log, "\n", `"conditions":[{"type":"Ready"}],`, 1) + `"rules":[]}`, "kubelet itself reports Ready"},
	} {
		t.Run(name, func(t *testing.T) {
			files := "nodeProblemDetector: {files: [\"" + dir + "/*.json\",\n\"" + dir + "/m.json\"]}\n"
			if err := os.Remove(monitor); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Fatal(err)
			}
			if test.monitor != "" {
				if err := os.WriteFile(monitor, []byte(test.monitor), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(config, []byte(files), 0o600); err != nil {
				t.Fatal(err)
			}
			err := Verify(config)
			got := fmt.Sprint(err)
			if (err != nil) != (test.want != "") || !strings.Contains(got, test.want) {
				t.Errorf("%s: want %q", got, test.want)
			}
		})
	}
}

func mustLoad(t *testing.T, name string) Config {
	t.Helper()
	c, err := Load(name)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
