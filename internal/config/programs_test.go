package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/internal/host/hosttest/executable"
	"github.com/nodeagent/nodeagent/internal/host/owned"
	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
)

// Programs that others may change are named with the place where they are configured, owner and mode; such a
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
		"all good":      {plugins("good", "good"), rules("good"), nil},
		"not there yet": {plugins("good", "later"), rules("later"), nil},
		"a plugin": {plugins("good", "bad"), rules("good"), []string{config + ":5: plugins.1.path", dir +
			"/bad belongs to user 0, mode 0777"}},
		"a monitor's": {plugins("good", "good"), rules("bad"), []string{monitor + ": rules.0.path", dir +
			"/bad belongs to user 0, mode 0777"}},
		"of both all are named": {plugins("bad", "bad"), rules("bad"), []string{"plugins.0", "plugins.1", "rules.0"}},
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
			err := Programs(config)
			if (err != nil) != (test.want != nil) || err != nil && !errors.Is(err, owned.ErrOthers) {
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

func mustLoad(t *testing.T, name string) Config {
	t.Helper()
	c, err := Load(name)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
