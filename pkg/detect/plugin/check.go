package plugin

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/program"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// domain groups the checks of users.
const domain = "plugins"

// Checks returns the checks that users write.
func Checks(all []Settings) []detect.Check {
	var checks []detect.Check
	for _, s := range all {
		checks = append(checks, s.check())
	}
	return checks
}

func (s Settings) check() detect.Check {
	timeout := cmp.Or(s.Timeout, defaultTimeout)
	p := &Plugin{
		Name: s.Path, Timeout: timeout, MaxOutput: cmp.Or(s.MaxOutput, defaultMaxOutput),
		Command: program.Command{Path: s.Path, Args: s.Args, Dir: s.Dir},
	}
	c := detect.Check{
		ID: "plugin-" + s.Name, Domain: domain,
		Summary: cmp.Or(s.Summary, "the plugin "+s.Path+" reports a problem"),
		Advice:  cmp.Or(s.Advice, "Run "+s.Path+" by hand for details."),
		Every:   cmp.Or(s.Every, defaultEvery), Deadline: timeout + 3*time.Second, // the time to kill it
		Policy: finding.Policy{Raise: finding.Hold{Runs: s.Runs}},
		Doc: detect.Doc{
			Reads:  []string{s.Path},
			Why:    "A check of the user: plugins in the configuration.",
			Faults: []detect.Fault{{Reason: s.Reason, Severity: s.severity(), When: "the plugin exits with code 1"}},
		},
	}
	if s.Condition != nil {
		c.Condition = finding.Condition{
			Type: s.Condition.Type, HealthyReason: s.Condition.HealthyReason,
			HealthyMessage: s.Condition.HealthyMessage,
		}
	}
	c.Run = func(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
		return s.findings(p.Run(ctx), h.NodeName)
	}
	return c
}

func (s Settings) severity() finding.Severity {
	if s.Condition != nil {
		return finding.Fatal
	}
	return cmp.Or(s.Severity, finding.Warning)
}

// findings converts the result of a run.
func (s Settings) findings(r Result, node string) ([]finding.Finding, error) {
	switch r.Status {
	case OK:
		return nil, nil
	case Unknown:
		return nil, errors.New(cmp.Or(r.Message, r.Stderr, "the plugin returned no result"))
	}
	f := finding.Finding{
		Subject: finding.Subject{Kind: "node", Name: node}, Severity: s.severity(), Reason: s.Reason,
		Message: r.Message,
		Facts:   map[string]string{"plugin": s.Path},
	}
	if r.Stderr != "" {
		f.Facts["stderr"] = r.Stderr
	}
	return []finding.Finding{f}, nil
}
