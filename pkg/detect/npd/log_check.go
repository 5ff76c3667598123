package npd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/node-problem-detector/pkg/types"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// conditionKind is the kind of subject of a permanent problem.
const conditionKind = "condition"

// errNotRead means that a log has not been read yet, so an absence of findings is no evidence.
var errNotRead = errors.New("the log has not been read yet")

// domain groups the checks of all files.
const domain = "node-problem-detector"

// checks returns a check for each condition of the file, and one for its temporary problems.
func (m *logMonitor) checks(o native) []detect.Check {
	var checks []detect.Check
	for i, c := range m.file.Log.DefaultConditions {
		if hasCondition(m.file.Log.DefaultConditions[:i], c.Type) {
			continue
		}
		refuted := o.refuted(m.settings, c.Type)
		check := m.check(conditionID(m.id, c.Type), func(now finding.Timestamp) ([]finding.Finding, error) {
			return m.runCondition(now, c.Type, refuted)
		})
		if !m.hasRule(c.Type) { // False from the start, whatever the log contains, as in node-problem-detector
			check.Run = func(context.Context, *host.Host) ([]finding.Finding, error) { return nil, nil }
		}
		check.Summary = fmt.Sprintf("condition %s of %s", c.Type, m.file.Name)
		check.Condition = o.condition(c)
		checks = append(checks, check)
	}
	if slices.ContainsFunc(m.file.Log.Rules, func(r LogRule) bool { return r.Type == types.Temp }) {
		check := m.check(m.id, m.runMoments)
		check.Summary = "temporary problems of " + m.file.Name
		checks = append(checks, check)
	}
	return checks
}

func (m *logMonitor) check(id string, run func(now finding.Timestamp) ([]finding.Finding, error)) detect.Check {
	return detect.Check{
		ID: id, Domain: domain, Every: time.Minute, Deadline: 5 * time.Second,
		Run: func(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
			m.await(ctx)
			now := h.Clock()
			findings, err := run(now)
			m.save(now.Boot, false)
			return findings, err
		},
		Wakes:  []detect.Wake{{Source: relay, Named: true}},
		Advice: "Read the surrounding lines in " + m.source() + "; the rule is in " + m.file.Name + ".",
		Doc: detect.Doc{
			Reads: []string{m.source()},
			Why:   "A rule of a system log monitor of node-problem-detector: " + m.file.Name + ".",
			FalseAlarms: "The patterns are the file's; a permanent problem stays until what " +
				"docs/node-problem-detector.md names clears it.",
		},
	}
}

// source names the log for messages.
func (m *logMonitor) source() string {
	switch m.file.Log.Plugin {
	case kmsgPlugin:
		return "/dev/kmsg"
	case journaldPlugin:
		return "the journal of " + m.file.Log.PluginConfig["source"]
	}
	return m.file.Log.LogPath
}

// conditionID is the ID of the check of a condition of a file: npd-kernel-monitor-kernel-deadlock.
func conditionID(file, condition string) string { return file + "-" + kebab(condition) }

// kebab converts a CamelCase name to the form of an ID.
func kebab(name string) string {
	var b strings.Builder
	letter := func(c byte) bool { return c >= 'a' && c <= 'z' || c >= '0' && c <= '9' }
	for i := range len(name) {
		c := name[i]
		upper := c >= 'A' && c <= 'Z'
		if upper {
			c += 'a' - 'A'
		}
		switch {
		case !letter(c):
			c = '-'
		case upper && i > 0 && (letter(name[i-1]) || i+1 < len(name) && letter(name[i+1])):
			b.WriteByte('-')
		}
		b.WriteByte(c)
	}
	return strings.Trim(strings.ReplaceAll(b.String(), "--", "-"), "-")
}

// runCondition reports a held permanent problem.
func (m *logMonitor) runCondition(now finding.Timestamp, condition string, refuted refuted) ([]finding.Finding, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h, known := m.held[condition]
	if known && (h.Expiry > 0 && now.SinceBoot-h.Last >= h.Expiry || refuted(h.Last, now)) {
		delete(m.held, condition)
		m.moved, known = true, false
	}
	if !known {
		return nil, m.unreadable
	}
	return []finding.Finding{{
		Subject: finding.Subject{Kind: conditionKind, Name: condition}, Severity: finding.Fatal,
		Reason: h.Reason, Message: h.Message,
		Facts: map[string]string{"file": m.file.Name, "source": m.file.Log.Source, "count": strconv.Itoa(h.Count)},
	}}, m.unreadable
}

// hasRule reports whether a rule can make a condition True.
func (m *logMonitor) hasRule(condition string) bool {
	return slices.ContainsFunc(m.rules, func(r logRule) bool { return r.Type != types.Temp && r.Condition == condition })
}

// runMoments reports the temporary problems of the last minutes.
func (m *logMonitor) runMoments(now finding.Timestamp) ([]finding.Finding, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.moments = slices.DeleteFunc(m.moments, func(o moment) bool { return now.SinceBoot-o.read >= momentHold })
	var findings []finding.Finding
	for _, o := range m.moments {
		findings = append(findings, finding.Finding{
			Subject: finding.Subject{Kind: "log-line", Name: fmt.Sprintf("%s@%.6f.%d", o.reason, o.at.Seconds(),
				o.serial)},
			Severity: finding.Warning, Reason: o.reason, Message: o.message, OneShot: true,
			Facts: map[string]string{"file": m.file.Name, "source": m.file.Log.Source},
		})
	}
	if m.missed > 0 && len(m.moments) > 0 {
		findings[len(findings)-1].Facts["alsoSeen"] = strconv.Itoa(m.missed)
	}
	if len(m.moments) == 0 {
		m.missed = 0
	}
	return findings, m.unreadable
}
