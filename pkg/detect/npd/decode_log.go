package npd

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/node-problem-detector/pkg/types"
)

// The plugins of a system log monitor: the sources of lines.
const (
	kmsgPlugin     = "kmsg"     // /dev/kmsg
	filelogPlugin  = "filelog"  // a log file
	journaldPlugin = "journald" // systemd's journal, entries of one syslog identifier
)

// noReason replaces a missing reason of a rule.
const noReason = "Unspecified"

const (
	// The defaults are node-problem-detector's.
	defaultBufferSize = 10
	// maxBufferSize bounds how many lines patterns are matched against at a time.
	maxBufferSize = 10_000
)

// times are the durations of a log monitor.
type times struct{ lookback, delay time.Duration }

func (c *LogConfig) times() (t times, err error) {
	if t.lookback, err = duration(c.Lookback, 0, steps("lookback")); err != nil {
		return t, err
	}
	t.delay, err = duration(c.Delay, 0, steps("delay"))
	return t, err
}

// start is the time since boot before which lines do not count, by the rule of node-problem-detector.
func (t times) start(up time.Duration) time.Duration { return max(t.delay, up-t.lookback) }

func (f *File) decodeLog() error {
	c := &LogConfig{}
	if err := f.decodeInto(c); err != nil {
		return err
	}
	if c.BufferSize == 0 {
		c.BufferSize = defaultBufferSize
	}
	if err := c.problem(); err != nil {
		return f.at(err)
	}
	f.Log = c
	return nil
}

// problem returns why c is invalid, or nil.
func (c *LogConfig) problem() error {
	if c.BufferSize < 0 || c.BufferSize > maxBufferSize {
		return problem{fmt.Sprintf("%d: must be from 1 to %d", c.BufferSize, maxBufferSize), steps("bufferSize")}
	}
	if _, err := c.times(); err != nil {
		return err
	}
	if err := c.pluginProblem(); err != nil {
		return err
	}
	if err := conditionProblem(c.DefaultConditions); err != nil {
		return err
	}
	if len(c.Rules) > maxRules {
		return problem{fmt.Sprintf("%d rules: at most %d are possible", len(c.Rules), maxRules), steps("rules")}
	}
	for i := range c.Rules {
		if err := c.Rules[i].problem(); err != nil {
			err.path = append(steps("rules", i), err.path...)
			return *err
		}
	}
	return nil
}

func (r *LogRule) problem() *problem {
	r.Reason = cmp.Or(r.Reason, noReason)
	for _, p := range []struct{ key, text string }{{"pattern", r.Pattern}, {"recoveryPattern", r.RecoveryPattern}} {
		if _, err := newPattern(p.text); err != nil {
			return &problem{err.Error(), steps(p.key)}
		}
	}
	if _, err := duration(r.Expiry, 0, nil); err != nil {
		return &problem{err.Error(), steps("expiry")}
	}
	return nil
}

func (c *LogConfig) pluginProblem() error {
	switch c.Plugin {
	case journaldPlugin:
		if c.PluginConfig["source"] == "" {
			return problem{"the plugin journald needs a source: the syslog identifier whose entries count",
				steps("pluginConfig")}
		}
	case filelogPlugin:
		if c.LogPath == "" {
			return problem{"the plugin filelog needs the path of a file", steps("plugin")}
		}
		for _, key := range []string{"timestamp", "message", "timestampFormat"} {
			if c.PluginConfig[key] == "" {
				return problem{fmt.Sprintf("the plugin filelog needs %q", key), steps("pluginConfig")}
			}
		}
		for _, key := range []string{"timestamp", "message"} {
			if _, err := regexp.Compile(c.PluginConfig[key]); err != nil {
				return problem{err.Error(), steps("pluginConfig", key)}
			}
		}
		if format := c.PluginConfig["timestampFormat"]; time.Unix(0, 0).Format(format) == time.Unix(1e9, 0).Format(format) {
			return problem{fmt.Sprintf("%q is no time in Go's form, such as \"Jan _2 15:04:05\"", format),
				steps("pluginConfig", "timestampFormat")}
		}
	}
	return nil
}

func conditionProblem(conditions []types.Condition) error {
	for i, c := range conditions {
		if c.Type == "" {
			return problem{"a condition needs a type", steps("conditions", i)}
		}
		if slices.Contains(kubelets(), corev1.NodeConditionType(c.Type)) {
			return problem{fmt.Sprintf("%s reports %s: two writers of one condition undo each other's work, and what follows from it does "+
				"not follow from a log; choose another type", ownerOf(c.Type), c.Type), steps("conditions", i, "type")}
		}
	}
	return nil
}

// ownerOf is the writer of one of these conditions.
func ownerOf(condition string) string {
	if condition == string(corev1.NodeNetworkUnavailable) {
		return "the network plugin or the cloud's route controller"
	}
	return "kubelet itself"
}

// kubelets are the conditions of a Node that kubelet writes now (pkg/kubelet/nodestatus) or wrote once, and that of the
// network. The scheduler acts on them.
func kubelets() []corev1.NodeConditionType {
	return []corev1.NodeConditionType{corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure,
		corev1.NodeNetworkUnavailable, "OutOfDisk"}
}

func hasCondition(conditions []types.Condition, name string) bool {
	return slices.ContainsFunc(conditions, func(c types.Condition) bool { return c.Type == name })
}
