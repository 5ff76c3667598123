package npd

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/node-problem-detector/pkg/custompluginmonitor"
	"k8s.io/node-problem-detector/pkg/custompluginmonitor/plugin"
	cpmtypes "k8s.io/node-problem-detector/pkg/custompluginmonitor/types"

	"github.com/nodeagent/nodeagent/internal/host/hosttest/executable"
	"github.com/nodeagent/nodeagent/internal/host/program"
	"github.com/nodeagent/nodeagent/pkg/detect/npd"
	ours "github.com/nodeagent/nodeagent/pkg/detect/plugin"
)

// script writes a plugin.
func script(t *testing.T, lines string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "plugin.sh")
	if err := executable.Write(name, []byte("#!/bin/bash\n"+lines+"\n")); err != nil {
		t.Fatal(err)
	}
	return name
}

// Both interpret one run of a plugin in the same way.
func TestPluginRuns(t *testing.T) {
	const hangs = 200
	for _, test := range []struct {
		name, script string
		args         []string
		limit        int
	}{
		{"ok", "echo fine", nil, 80},
		{"problem", "echo bad; exit 1", nil, 80},
		{"unknown", "echo hm; exit 2", nil, 80},
		{"any other code", "echo hm; exit 77", nil, 80},
		{"silent", "exit 1", nil, 80},
		{"much output", "printf 'x%.0s' {1..9000}; exit 1", nil, 80},
		{"all that is read", "printf 'x%.0s' {1..9000}; exit 1", nil, 5000},
		{"blanks around", "printf '  \\n bad \\n\\n'; exit 1", nil, 80},
		{"only errors", "echo bad >&2; exit 1", nil, 80},
		{"arguments", `printf '%s|' "$@"; exit 1`, []string{"a b", "--c=$HOME", "*"}, 80},
		{"killed", "kill -9 $$", nil, 80},
		{"hangs", "echo begun; sleep 100", nil, hangs},
		{"ignores signals", "trap '' TERM INT; echo begun; while :; do sleep 0.1; done", nil, hangs},
		{"child holds the output", "sleep 100 & echo begun; wait", nil, hangs},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			path, timeout := script(t, test.script), time.Minute
			if test.limit == hangs {
				timeout = 5 * time.Second // within which it must print that it has begun
			}
			c := cpmtypes.CustomPluginConfig{Plugin: "custom",
				Rules: []*cpmtypes.CustomRule{{Path: path, Args: test.args, Reason: "R", Type: "temporary"}}}
			if err := c.ApplyConfiguration(); err != nil {
				t.Fatal(err)
			}
			c.PluginGlobalConfig.Timeout, c.PluginGlobalConfig.MaxOutputLength = &timeout, &test.limit
			p := plugin.NewPlugin(c)
			go p.Run()
			r := <-p.GetResultChan()
			p.Stop()
			want := fmt.Sprintf("%d %s", r.ExitStatus, r.Message)

			o := (&ours.Plugin{Name: path, Timeout: timeout, MaxOutput: test.limit, Command: program.Command{Path: path,
				Args: test.args}}).Run(t.Context())
			status := map[ours.Status]cpmtypes.Status{ours.OK: cpmtypes.OK, ours.Problem: cpmtypes.NonOK,
				ours.Unknown: cpmtypes.Unknown}[o.Status]
			if diff := cmp.Diff(want, fmt.Sprintf("%d %s", status, o.Message)); diff != "" {
				t.Errorf("theirs (-), ours (+):\n%s", diff)
			}
		})
	}
}

// pluginWithAnswers writes a plugin that gives other answers each time: "code message", one after the other, the last
// one for ever. over reports whether the last one was given and repeated.
func pluginWithAnswers(t *testing.T, answers ...string) (path string, over func() bool) {
	t.Helper()
	dir := t.TempDir()
	over = func() bool {
		text, _ := os.ReadFile(filepath.Join(dir, "n"))
		n, _ := strconv.Atoi(strings.TrimSpace(string(text)))
		return n > len(answers)+1
	}
	return script(t, fmt.Sprintf(`n=$(cat %[1]s/n 2>/dev/null || echo 0); echo $((n+1)) >%[1]s/n
answers=(%[2]s)
[ $n -lt ${#answers[@]} ] || n=$((${#answers[@]}-1))
set -- ${answers[$n]}
code=$1; shift; echo "$*"; exit $code`, dir, "'"+strings.Join(answers, "' '")+"'")), over
}

// A condition follows its plugin, with the same texts.
func TestPluginMonitors(t *testing.T) {
	for _, test := range []struct {
		name    string
		config  string // of pluginConfig, besides the interval
		answers []string
	}{
		{"well", "", []string{"0 fine"}},
		{"ill", "", []string{"1 bad"}},
		{"unhealthy and healthy again", "", []string{"0 fine", "1 bad", "1 worse", "0 fine"}},
		{"each message is reported", `, "enable_message_change_based_condition_update": true`,
			[]string{"1 bad", "1 worse", "1 worse", "1 worst"}},
		{"twice", "", []string{"1 bad", "0 fine", "1 bad again"}},
		{"short", `, "max_output_length": 5`, []string{"1 abcdefghij"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			config := func(path string) []byte {
				return []byte(fmt.Sprintf(`{"plugin": "custom", "pluginConfig": {"invoke_interval": "500ms", "timeout": "1m"%s}, "source": "test",
					"conditions": [{"type": "NTPProblem", "reason": "NTPIsUp", "message": "ntp service is up"}],
					"rules": [{"type": "permanent", "condition": "NTPProblem", "reason": "NTPIsDown", "path": %q}]}`, test.config, path))
			}
			file := filepath.Join(dir, "monitor.json")
			path, over := pluginWithAnswers(t, test.answers...)
			if err := os.WriteFile(file, config(path), 0o600); err != nil {
				t.Fatal(err)
			}
			want := they(t, custompluginmonitor.NewCustomPluginMonitorOrDie(file), func() {},
				func(answer) bool { return over() })

			path, over = pluginWithAnswers(t, test.answers...)
			decoded, err := npd.Decode(file, config(path))
			if err != nil {
				t.Fatal(err)
			}
			w := we(t, decoded, npd.DefaultSettings()) // real time: the plugins are real
			for end := time.Now().Add(time.Minute); time.Now().Before(end) && (!over() || !cmp.Equal(want, w.now())); {
				time.Sleep(100 * time.Millisecond)
			}
			if diff := cmp.Diff(want, w.reported()); diff != "" {
				t.Errorf("theirs (-), ours (+):\n%s", diff)
			}
		})
	}
}
