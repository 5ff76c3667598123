package npd

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/node-problem-detector/pkg/types"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/plugin"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// checks returns a check for each condition of the file, and one for its temporary problems.
func (m *pluginMonitor) checks() []detect.Check {
	var checks []detect.Check
	var temporary []*pluginRule
	rules := map[string][]*pluginRule{}
	for _, r := range m.rules {
		switch {
		case r.Type == types.Temp:
			temporary = append(temporary, r)
		case r.covered == "":
			rules[r.Condition] = append(rules[r.Condition], r)
		}
	}
	for i, c := range m.file.Plugin.DefaultConditions {
		of := rules[c.Type]
		if len(of) == 0 && m.hasRule(c.Type) || hasCondition(m.file.Plugin.DefaultConditions[:i], c.Type) {
			continue // a native check covers it, or it is a second one of the same name
		}
		check := m.base(conditionID(m.id, c.Type), of)
		check.Summary = fmt.Sprintf("condition %s of %s", c.Type, m.file.Name)
		check.Condition = m.native.condition(c)
		shown := "" // the reported reason, as long as it lasts
		check.Run = func(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
			m.run(ctx, h, of)
			f, err := m.worst(c.Type, of, shown)
			if f == nil {
				shown = ""
				return nil, err
			}
			shown = f.Reason
			return []finding.Finding{*f}, err
		}
		checks = append(checks, check)
	}
	if len(temporary) > 0 {
		check := m.base(m.id, temporary)
		check.Summary = "temporary problems of " + m.file.Name
		check.Run = func(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
			m.run(ctx, h, temporary)
			return m.temporary(temporary)
		}
		checks = append(checks, check)
	}
	return checks
}

// hasRule reports whether a rule can make a condition True. A condition without a rule is reported as False, as in
// node-problem-detector: somebody may wait until it exists.
func (m *pluginMonitor) hasRule(condition string) bool {
	return slices.ContainsFunc(m.rules, func(r *pluginRule) bool { return r.Type != types.Temp && r.Condition == condition })
}

// worst reports the problem of a condition: if several rules share it, one is enough, and the reported reason stays as
// long as it lasts. An unknown result of a rule is an error.
func (m *pluginMonitor) worst(condition string, rules []*pluginRule, shown string) (*finding.Finding, error) {
	var worst *pluginRule
	var reported plugin.Result
	var unknown []error
	for _, r := range rules {
		answer, _, err := r.newest()
		switch {
		case err != nil:
			unknown = append(unknown, err)
		case answer.Status == plugin.Problem && (worst == nil || r.Reason == shown && worst.Reason != shown):
			worst, reported = r, answer
		}
	}
	if worst == nil {
		return nil, errors.Join(unknown...)
	}
	f := m.finding(finding.Subject{Kind: conditionKind, Name: condition}, worst, reported)
	f.Severity = finding.Fatal
	f.RepublishMessage = *m.file.Plugin.PluginGlobalConfig.EnableMessageChangeBasedConditionUpdate
	return &f, errors.Join(unknown...)
}

func (m *pluginMonitor) finding(subject finding.Subject, r *pluginRule, answer plugin.Result) finding.Finding {
	f := finding.Finding{
		Subject: subject, Severity: finding.Warning, Reason: r.Reason, Message: answer.Message,
		Facts: map[string]string{"file": m.file.Name, "source": m.file.Plugin.Source, "plugin": r.Path},
	}
	if answer.Stderr != "" {
		f.Facts["stderr"] = answer.Stderr
	}
	return f
}

// temporary reports the problems of temporary rules: one subject for each rule.
func (m *pluginMonitor) temporary(rules []*pluginRule) ([]finding.Finding, error) {
	var findings []finding.Finding
	doubt := map[finding.Subject]error{}
	for i, r := range rules {
		subject := finding.Subject{Kind: "plugin-rule", Name: r.Reason}
		if slices.ContainsFunc(rules[:i], func(other *pluginRule) bool { return other.Reason == r.Reason }) {
			subject.Name += fmt.Sprintf("#%d", r.index)
		}
		answer, runs, err := r.newest()
		switch {
		case err != nil && (runs == 0 || !m.settings.UnknownIsProblem):
			doubt[subject] = err
			continue
		case answer.Status == plugin.OK:
			continue
		}
		if m.settings.RepeatEvents {
			subject.Name += fmt.Sprintf("@%d", runs)
		}
		f := m.finding(subject, r, answer)
		f.OneShot = m.settings.RepeatEvents
		findings = append(findings, f)
	}
	return findings, finding.Partial(doubt)
}
