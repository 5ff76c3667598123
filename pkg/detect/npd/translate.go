package npd

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"k8s.io/node-problem-detector/pkg/types"

	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules"
	"github.com/nodeagent/nodeagent/pkg/detect/plugin"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Fate is the result of translating a rule.
type Fate string

// The fates.
const (
	Covered Fate = "covered" // the agent finds the problem without the file
	Plugin  Fate = "plugin"  // it can be a plugin of the agent's own configuration
	Rule    Fate = "rule"    // it can be a rule of the agent's own configuration
	Stays   Fate = "stays"   // the file is run unchanged
	Dead    Fate = "dead"    // it has no effect, not even in node-problem-detector
)

// RuleFate is the fate of one rule, and the reason.
type RuleFate struct {
	File      string `json:"file"`
	Index     int    `json:"index"` // of the rule, from 0
	Reason    string `json:"reason"`
	Condition string `json:"condition,omitempty"` // of a permanent problem
	Fate      Fate   `json:"fate"`
	Why       string `json:"why"`
}

// Translation is the result of translating a set of files.
type Translation struct {
	Rules       []RuleFate             `json:"rules"`
	Files       []string               `json:"files"` // those that are still needed
	Plugins     []plugin.Settings      `json:"-"`
	KernelRules []kernellog.CustomRule `json:"-"`
}

// translation is the work on one set of files.
type translation struct {
	Translation
	native native
	table  []rules.Rule
	stays  map[string]bool
}

// Translate determines the fates of files beside the agent's own checks and rules.
func Translate(files []File, checks []detect.Check, table []rules.Rule) Translation {
	t := &translation{native: native{checks: checks}, table: table, stays: map[string]bool{}}
	t.Rules, t.Files = []RuleFate{}, []string{}
	for _, f := range files {
		switch f.Kind {
		case LogMonitor:
			t.log(f)
		case PluginMonitor:
			t.plugins(f)
		}
		if t.stays[f.Name] {
			t.Files = append(t.Files, f.Name)
		}
	}
	return t.Translation
}

// add records the fate of a rule.
func (t *translation) add(rule RuleFate, fate Fate, why string, args ...any) {
	rule.Fate, rule.Why = fate, fmt.Sprintf(why, args...)
	t.Rules = append(t.Rules, rule)
	if fate == Stays {
		t.stays[rule.File] = true
	}
}

// log translates the rules of a system log monitor.
func (t *translation) log(f File) {
	for i, r := range f.Log.Rules {
		condition := conditionOf(r.Type, r.Condition)
		rule := RuleFate{File: f.Name, Index: i, Reason: r.Reason, Condition: condition}
		covered := t.rulesFor(r.Reason)
		_, sameCondition := t.native.byCondition(condition)
		switch {
		case condition != "" && !hasCondition(f.Log.DefaultConditions, condition):
			t.add(rule, Dead, "the file has no such condition")
		case f.Log.Plugin != kmsgPlugin:
			t.add(rule, Stays, "the agent follows %s for it", f.describe())
		case covered != "" && (condition == "" || sameCondition):
			t.add(rule, Covered, "%s", covered)
		case covered != "":
			t.add(rule, Stays, "the agent finds it without the file (%s), but under another condition", covered)
		default:
			t.kernelRule(rule, r.Pattern)
		}
	}
}

// conditionOf returns the condition of a rule; empty for a temporary problem.
func conditionOf(kind types.Type, condition string) string {
	if kind == types.Temp {
		return ""
	}
	return condition
}

// describe names the log that a file reads.
func (f File) describe() string { return (&logMonitor{file: f}).source() }

// rulesFor names the kernel log rules that find the problem of a node-problem-detector reason: rules have its reason if
// it has one. This function maps the others.
func (t *translation) rulesFor(reason string) string {
	switch reason {
	case "DockerHung":
		reason = "TaskHung"
	case "XfsShutdown":
		reason = "XfsHasShutdown"
	}
	var ids, states []string
	for _, r := range t.table {
		if r.Reason == reason {
			ids = append(ids, r.ID)
			if _, ok := t.native.find(r.ConfirmedBy); ok {
				states = append(states, r.ConfirmedBy)
			}
		}
	}
	if len(ids) == 0 {
		return ""
	}
	text := "kernel log rule " + strings.Join(ids, ", ")
	if slices.Sort(states); len(states) > 0 {
		text += "; check " + strings.Join(slices.Compact(states), ", ") + " reads the state"
	}
	return text
}

// kernelRule converts a temporary problem of the kernel's log to a rule of the agent, if that is equivalent.
func (t *translation) kernelRule(rule RuleFate, expr string) {
	p, err := newPattern(expr)
	switch {
	case rule.Condition != "":
		t.add(rule, Stays, "a rule of the agent cannot set a condition of this name")
		return
	case err != nil || !p.lastLine || len(p.literals) == 0:
		t.add(rule, Stays, "a rule of the agent matches one line, and needs a text that is in each")
		return
	}
	own := kernellog.CustomRule{
		ID: unique(kebab(rule.Reason), t.hasRule), Reason: rule.Reason, Severity: finding.Warning,
		Summary: "from " + path.Base(rule.File), Patterns: []string{`^.*(?:` + expr + `)\s*$`},
	}
	if len(own.Problems()) > 0 {
		t.add(rule, Stays, "it cannot be written as a rule of the agent")
		return
	}
	t.KernelRules = append(t.KernelRules, own)
	t.add(rule, Rule, "rules: %s", own.ID)
}

func (t *translation) hasRule(id string) bool {
	return slices.ContainsFunc(t.table, func(r rules.Rule) bool { return r.ID == id }) ||
		slices.ContainsFunc(t.KernelRules, func(r kernellog.CustomRule) bool { return r.ID == id })
}

// plugins translates the rules of a custom plugin monitor.
func (t *translation) plugins(f File) {
	for i, r := range f.Plugin.Rules {
		condition := conditionOf(r.Type, r.Condition)
		rule := RuleFate{File: f.Name, Index: i, Reason: r.Reason, Condition: condition}
		switch path.Base(r.Path) {
		case "health-checker":
			t.health(rule, r.Args)
		case "log-counter":
			t.add(rule, Stays, "the agent counts the journal's entries itself; log-counter is not run")
		default:
			if !path.IsAbs(r.Path) {
				t.add(rule, Stays, "its path is relative: %s is searched beside the file", r.Path)
				continue
			}
			s := t.pluginOf(f, i, condition)
			if len(s.Problems()) > 0 {
				t.add(rule, Stays, "its names are not valid for a plugin of the agent")
				continue
			}
			t.Plugins = append(t.Plugins, s)
			t.add(rule, Plugin, "plugins: %s", s.Name)
		}
	}
}

// pluginOf converts a rule to a plugin of the agent's own configuration.
func (t *translation) pluginOf(f File, i int, condition string) plugin.Settings {
	r, g := f.Plugin.Rules[i], f.Plugin.PluginGlobalConfig
	taken := func(name string) bool {
		return slices.ContainsFunc(t.Plugins, func(p plugin.Settings) bool { return p.Name == name })
	}
	s := plugin.Settings{
		Name: unique(kebab(r.Reason), taken), Path: r.Path, Args: r.Args, Reason: r.Reason, Every: *g.InvokeInterval,
		Timeout: *g.Timeout, MaxOutput: min(*g.MaxOutputLength, maxOutputLength),
	}
	if f.Plugin.Intervals[i] > 0 {
		s.Every = f.Plugin.Intervals[i]
	}
	if r.Timeout != nil {
		s.Timeout = *r.Timeout
	}
	for _, c := range f.Plugin.DefaultConditions {
		if condition != "" && c.Type == condition {
			s.Condition = &plugin.Condition{Type: c.Type, HealthyReason: c.Reason, HealthyMessage: c.Message}
		}
	}
	return s
}

// health translates a call of health-checker.
func (t *translation) health(rule RuleFate, args []string) {
	id := healthCheckOf(args)
	check, ok := t.native.find(id)
	if !ok {
		t.add(rule, Stays, "no check of the agent replaces health-checker --component=%s: it is run",
			flagOf(args, "component", "kubelet"))
		return
	}
	var without []string
	if flagOf(args, "enable-repair", "true") == "true" {
		without = append(without, "nothing is restarted")
	}
	if patterns := flagOf(args, "log-pattern", ""); patterns != "" {
		without = append(without, "its log patterns are not used")
	}
	note := ""
	if len(without) > 0 {
		note = "; " + strings.Join(without, ", ")
	}
	if rule.Condition != "" && check.Condition.Type == rule.Condition {
		t.add(rule, Covered, "check %s sets this condition%s", id, note)
		return
	}
	t.add(rule, Stays, "check %s answers instead of health-checker%s", id, note)
}

// notRun is why a system stats monitor has no effect.
const notRun = "it is not run: node_exporter serves its metrics"

// Headline describes a file in one line.
func (f File) Headline() string {
	switch f.Kind {
	case LogMonitor:
		return fmt.Sprintf("%s of %s, source %s", f.Kind, f.describe(), cmp.Or(f.Log.Source, "unnamed"))
	case PluginMonitor:
		return fmt.Sprintf("%s, source %s", f.Kind, cmp.Or(f.Plugin.Source, "unnamed"))
	}
	return string(f.Kind) + ": " + notRun
}
