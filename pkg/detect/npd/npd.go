// Package npd runs the configuration files of node-problem-detector unchanged: system log monitors and custom plugin
// monitors. It uses the schema of node-problem-detector's own modules; the running code is the agent's. A broken file
// affects only itself, and is reported with its position. It runs no system stats monitor: node_exporter serves their
// metrics, and more.
package npd

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	cpmtypes "k8s.io/node-problem-detector/pkg/custompluginmonitor/types"
	watchertypes "k8s.io/node-problem-detector/pkg/systemlogmonitor/logwatchers/types"
	logtypes "k8s.io/node-problem-detector/pkg/systemlogmonitor/types"
	"k8s.io/node-problem-detector/pkg/types"
)

// Kind is the kind of node-problem-detector's monitors that a file configures, named like its flags (--config.KIND).
type Kind string

// The kinds.
const (
	LogMonitor    Kind = "system-log-monitor"
	PluginMonitor Kind = "custom-plugin-monitor"
	StatsMonitor  Kind = "system-stats-monitor"
)

// File is one configuration file. Kind selects which of Log and Plugin is set; a stats monitor has neither.
type File struct {
	Name   string // its path
	Kind   Kind
	Log    *LogConfig
	Plugin *PluginConfig

	Source     string            // declared, even if Decode returns an error
	Conditions []types.Condition // likewise

	data []byte
}

// LogConfig is the configuration of a system log monitor. It mirrors systemlogmonitor.MonitorConfig, whose package
// imports all code that node-problem-detector runs; a test in node-problem-detector's module compares the two.
type LogConfig struct {
	watchertypes.WatcherConfig
	BufferSize             int               `json:"bufferSize"`
	Source                 string            `json:"source"`
	DefaultConditions      []types.Condition `json:"conditions"`
	Rules                  []LogRule         `json:"rules"`
	EnableMetricsReporting *bool             `json:"metricsReporting,omitempty"`
}

// LogRule is one rule of a system log monitor, with additional keys of the agent. node-problem-detector ignores unknown
// keys, so a file with them still runs there.
type LogRule struct {
	logtypes.Rule
	// RecoveryPattern matches, like Pattern, lines that end the problem.
	RecoveryPattern string `json:"recoveryPattern,omitempty"`
	// Expiry is how long after the last line a permanent problem ends, for example "1h".
	Expiry string `json:"expiry,omitempty"`
}

// PluginConfig is the configuration of a custom plugin monitor.
type PluginConfig struct{ cpmtypes.CustomPluginConfig }

// maxRules bounds the rules of one file.
const maxRules = 500

// Decode reads a configuration file; name is for errors, of the form name:line:column: text. It accepts the same as
// node-problem-detector, keys in any case, and a trailing comma before a closing bracket, which one of its shipped
// files has.
func Decode(name string, data []byte) (File, error) {
	f := File{Name: name, data: data}
	var top map[string]json.RawMessage
	if err := json.Unmarshal(data, &top); err != nil {
		mended := withoutTrailingCommas(data)
		if json.Unmarshal(mended, &top) != nil {
			return f, f.syntax(err)
		}
		f.data = mended
	}
	f.declare(top)
	kind, err := kindOf(top)
	if err != nil {
		return f, f.at(err)
	}
	f.Kind = kind
	switch kind {
	case LogMonitor:
		err = f.decodeLog()
	case PluginMonitor:
		err = f.decodePlugin()
	}
	return f, err
}

// kindOf determines the kind of a file by its keys; node-problem-detector has a flag for it.
func kindOf(top map[string]json.RawMessage) (Kind, error) {
	has := func(key string) (json.RawMessage, bool) {
		for k, v := range top {
			if strings.EqualFold(k, key) {
				return v, true
			}
		}
		return nil, false
	}
	if value, ok := has("plugin"); ok {
		var plugin string
		if err := json.Unmarshal(value, &plugin); err != nil {
			return "", problem{"must be a string", steps("plugin")}
		}
		switch plugin {
		case "custom":
			return PluginMonitor, nil
		case kmsgPlugin, filelogPlugin, journaldPlugin:
			return LogMonitor, nil
		}
		return "", problem{fmt.Sprintf("unknown plugin %q: kmsg, filelog, journald and custom are known", plugin),
			steps("plugin")}
	}
	for _, key := range []string{"cpu", "disk", "host", "memory", "osFeature", "net"} {
		if _, ok := has(key); ok {
			return StatsMonitor, nil
		}
	}
	return "", problem{"this is no monitor of node-problem-detector: it has neither a plugin nor one of the groups " +
		"of system stats", nil}
}

// decodeInto reads the file into one of its types.
func (f *File) decodeInto(target any) error {
	if err := json.Unmarshal(f.data, target); err != nil {
		return f.syntax(err)
	}
	return nil
}

// problem is an invalid value of a file.
type problem struct {
	what string
	path []any // keys and indices that lead to the value
}

// Error implements error.
func (p problem) Error() string { return p.what }

// steps is a path in a file.
func steps(path ...any) []any { return path }

// at formats a problem with its position.
func (f *File) at(err error) error {
	p, ok := errors.AsType[problem](err)
	if !ok {
		return fmt.Errorf("%s: %w", f.Name, err)
	}
	return f.place(locate(f.data, p.path), words(p.path)+p.what)
}

// words is a path for messages: "rules[2].pattern: ".
func words(steps []any) string {
	var b strings.Builder
	for _, step := range steps {
		switch step := step.(type) {
		case int:
			fmt.Fprintf(&b, "[%d]", step)
		case string:
			if b.Len() > 0 {
				b.WriteByte('.')
			}
			b.WriteString(step)
		}
	}
	if b.Len() > 0 {
		b.WriteString(": ")
	}
	return b.String()
}

// syntax formats an error of the decoder.
func (f *File) syntax(err error) error {
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		return f.place(e.Offset-1, e.Error())
	}
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return f.place(e.Offset-1, fmt.Sprintf("%s cannot be a %s", cmp.Or(e.Field, "the file"), e.Value))
	}
	return fmt.Errorf("%s: %w", f.Name, err)
}

func (f *File) place(offset int64, what string) error {
	before := f.data[:max(0, min(offset, int64(len(f.data))))]
	line := 1 + bytes.Count(before, []byte("\n"))
	column := 1 + len(before) - (bytes.LastIndexByte(before, '\n') + 1)
	return fmt.Errorf("%s:%d:%d: %s", f.Name, line, column, what)
}
