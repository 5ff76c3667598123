package npd

import (
	"strings"
	"testing"
	"time"
)

const kernelMonitor = `{
	"PLUGIN": "kmsg", "logpath": "/dev/kmsg", "Lookback": "5m", "source": "kernel-monitor",
	"conditions": [
		{"type": "KernelDeadlock", "reason": "KernelHasNoDeadlock", "message": "kernel has no deadlock"},
		{"type": "ReadonlyFilesystem", "reason": "FilesystemIsNotReadOnly", "message": "Filesystem is not read-only"}
	],
	"rules": [
		{"type": "temporary", "reason": "OOMKilling", "pattern": "Killed process \\d+ .*"},
		{"type": "permanent", "condition": "KernelDeadlock", "reason": "DockerHung", "pattern": "task docker:\\w+ blocked for more than \\w+ seconds\\.",
			"recoveryPattern": "docker is back", "expiry": "1h"},
		{"type": "permanent", "condition": "ReadonlyFilesystem", "reason": "FilesystemIsReadOnly", "pattern": "Remounting filesystem read-only"}
	]
}`

func mustDecode(t testing.TB, name, text string) File {
	t.Helper()
	f, err := Decode(name, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestDecode(t *testing.T) {
	f := mustDecode(t, "kernel.json", kernelMonitor)
	if f.Kind != LogMonitor || f.Log.BufferSize != 10 || f.Log.Source != "kernel-monitor" ||
		f.Log.LogPath != "/dev/kmsg" || f.Log.Lookback != "5m" {
		t.Errorf("%s %+v", f.Kind, f.Log)
	}
	if r := f.Log.Rules[1]; r.RecoveryPattern != "docker is back" || r.Expiry != "1h" ||
		r.Condition != "KernelDeadlock" {
		t.Errorf("%+v", r)
	}
	f = mustDecode(t, "plugins.json", `{"plugin": "custom", "pluginConfig": {"invoke_interval": "10s", "timeout": "1m"}, "source": "x", "rules": [
		{"type": "temporary", "reason": "A", "path": "/a", "timeout": "3s"}, {"type": "temporary", "path": "b"}]}`)
	g := f.Plugin.PluginGlobalConfig
	if *g.InvokeInterval != 10*time.Second || *g.Timeout != time.Minute || *g.MaxOutputLength != 80 ||
		*g.Concurrency != 3 || *f.Plugin.Rules[0].Timeout != 3*time.Second {
		t.Errorf("%+v", g)
	}
	if reason := f.Plugin.Rules[1].Reason; reason != "Unspecified" {
		t.Error(reason)
	}
	f = mustDecode(t, "stats.json", `{"cpu": {"metricsConfigs": {"cpu/load_1m": {"displayName": "load"}}}}`)
	if f.Kind != StatsMonitor {
		t.Error(f.Kind)
	}
	f = mustDecode(t, "commas.json", "{\"plugin\": \"kmsg\", \"source\": \"a ,]\", \"conditions\": [\n],\n\"rules\": "+
		"[{\"reason\": \"R\", \"type\": \"temporary\", \"pattern\": \"x\",},\n ], }")
	if f.Log.Source != "a ,]" || len(f.Log.Rules) != 1 {
		t.Errorf("%+v", f.Log)
	}
}

// Errors name their position.
func TestDecodeErrors(t *testing.T) {
	for _, test := range []struct{ name, text, want string }{
		{"no JSON", "{\n  \"plugin\": kmsg}", "f.json:2:13: invalid character 'k'"},
		{"cut off", "{\n  \"plugin\": \"kmsg\"", "f.json:2:18: unexpected end of JSON input"},
		{"empty", "", "f.json:1:1: unexpected end"},
		{"a list", `[{"moduleName": "x"}]`, "f.json:1:1: the file cannot be a array"},
		{"no monitor", `{"apiEndpoint": "x"}`, "f.json:1:1: this is no monitor"},
		{"unknown plugin", "{\n\"source\": \"s\",\n \"plugin\": \"syslog\"}",
			`f.json:3:12: plugin: unknown plugin "syslog"`},
		{"plugin is no text", `{"plugin": 3}`, "f.json:1:12: plugin: must be a string"},
		{"wrong type", "{\"plugin\": \"kmsg\",\n \"bufferSize\": \"ten\"}",
			"f.json:2:20: bufferSize cannot be a string"},
		{"buffer", `{"plugin": "kmsg", "bufferSize": -1}`, "f.json:1:34: bufferSize: -1: must be from 1 to 10000"},
		{"lookback", `{"plugin": "kmsg", "lookback": "long"}`, `f.json:1:32: lookback: "long" is no duration`},
		{"pattern", "{\"plugin\": \"kmsg\", \"rules\": [\n{\"reason\": \"A\", \"pattern\": \"a\"},\n{\"reason\": " +
			"\"B\", \"Pattern\": \"(\"}]}",
			"f.json:3:28: rules[1].pattern: error parsing regexp: missing closing )"},
		{"recovery", `{"plugin": "kmsg", "rules": [{"pattern": "a", "recoveryPattern": "["}]}`,
			"f.json:1:66: rules[0].recoveryPattern: error parsing"},
		{"expiry", `{"plugin": "kmsg", "rules": [{"pattern": "a", "expiry": "1"}]}`,
			`f.json:1:57: rules[0].expiry: "1" is no duration`},
		{"journald without source", `{"plugin": "journald"}`,
			"f.json:1:1: pluginConfig: the plugin journald needs a source"},
		{"filelog without path", `{"plugin": "filelog"}`, "f.json:1:12: plugin: the plugin filelog needs the path"},
		{"filelog without format",
			`{"plugin": "filelog", "logPath": "/x", "pluginConfig": {"timestamp": "a", "message": "b"}}`,
			`f.json:1:56: pluginConfig: the plugin filelog needs "timestampFormat"`},
		{"filelog pattern",
			`{"plugin": "filelog", "logPath": "/x", "pluginConfig": {"timestamp": "(", "message": "b", "timestampFormat": "x"}}`, "f.json:1:70: pluginConfig.timestamp: error parsing"},
		{"condition", `{"plugin": "kmsg", "conditions": [{"reason": "x"}]}`,
			"f.json:1:35: conditions[0]: a condition needs a type"},
		{"interval", `{"plugin": "custom", "pluginConfig": {"invoke_interval": "0s"}}`,
			`f.json:1:58: pluginConfig.invoke_interval: "0s": must be above 0`},
		{"timeout", `{"plugin": "custom", "rules": [{"path": "/x", "timeout": "6s"}]}`,
			"f.json:1:58: rules[0].timeout: 6s is longer than the timeout of the file, 5s"},
		{"rule timeout", `{"plugin": "custom", "rules": [{"path": "/x", "timeout": "x"}]}`,
			`f.json:1:58: rules[0].timeout: "x" is no duration`},
		{"concurrency", `{"plugin": "custom", "pluginConfig": {"concurrency": 0}}`,
			"f.json:1:54: pluginConfig.concurrency: 0: must be from 1 to 32"},
		{"output", `{"plugin": "custom", "pluginConfig": {"max_output_length": -1}}`,
			"f.json:1:60: pluginConfig.max_output_length: -1"},
		{"no path", `{"plugin": "custom", "rules": [{"reason": "x"}]}`, "f.json:1:32: rules[0]: a rule needs the path"},
		{"null rule", `{"plugin": "custom", "rules": [null]}`, "f.json:1:32: rules[0]: a rule is missing"},
		{"no such condition", `{"plugin": "custom", "rules": [{"type": "permanent", "path": "/x", "condition": "C"}]}`,
			`f.json:1:81: rules[0].condition: the file has no condition "C"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := Decode("f.json", []byte(test.text))
			if err == nil || !strings.HasPrefix(err.Error(), test.want) {
				t.Errorf("got  %v\nwant %s", err, test.want)
			}
		})
	}
}

func TestKebab(t *testing.T) {
	for name, want := range map[string]string{
		"KernelDeadlock": "kernel-deadlock", "NTPProblem": "ntp-problem",
		"IPTablesVersionsMismatch": "ip-tables-versions-mismatch",
		"kernel-monitor":           "kernel-monitor", "my file (2)": "my-file-2",
		"CperHardwareErrorFatal": "cper-hardware-error-fatal", "A": "a", "Ext4Error": "ext4-error",
	} {
		if got := kebab(name); got != want {
			t.Errorf("%s becomes %s", name, got)
		}
	}
}

// FuzzDecode reads unusual input: the result is an error or a file that can be run, and no panic.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(kernelMonitor))
	f.Add(
		[]byte(
			`{"plugin": "custom", "pluginConfig": {"timeout": "5s", "concurrency": 3}, "conditions": [{"type": "A"}], "rules": [{"type": "permanent", "condition": "A", "reason": "R", "path": "/x", "args": ["--component=cri"]}, {"path": "log-counter", "args": ["--journald-source=x", "--pattern=a|b", "--count", "3"]}]}`))
	f.Add(
		[]byte(
			`{"net": {"metricsConfigs": {"net/rx_bytes": {"displayName": "_x"}}, "excludeInterfaceRegexp": "^veth"}, "disk": {"lsblkTimeout": "5s"}}`))
	f.Add(
		[]byte(
			`{"plugin": "filelog", "logPath": "/x", "pluginConfig": {"timestamp": "^.{15}", "message": "(.*)", "timestampFormat": "Jan _2 15:04:05"}, "skipList": ["a",], "rules": [],}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := Decode("f.json", data)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "f.json") {
				t.Errorf("%v", err)
			}
			return
		}
		m := New([]File{file}, nil, DefaultSettings(), Deps{Host: madeUp()})
		for _, c := range m.Checks() {
			if c.ID == "" || c.Every <= 0 || c.Run == nil {
				t.Errorf("%+v", c)
			}
		}
	})
}

func TestTrailingCommasMoveNothing(t *testing.T) {
	in := `{"a": [1, 2 , ] , "b": ",]", "c": "\",]" ,  }`
	want := `{"a": [1, 2   ] , "b": ",]", "c": "\",]"    }`
	if got := string(withoutTrailingCommas([]byte(in))); got != want {
		t.Errorf("got %s", got)
	}
}
