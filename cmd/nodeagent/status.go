package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/cmd/nodeagent/agent"
	"github.com/nodeagent/nodeagent/cmd/nodeagent/agent/status"
	"github.com/nodeagent/nodeagent/cmd/nodeagent/config"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

func newStatus(o *options) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the findings of this node and their age, reports and repairs, and the checks that cannot tell",
		Long: `Show the state of the running agent: its findings and their age, whether they were reported, the
leftovers that were or would be released, and the checks that cannot tell.

If no agent runs, the command runs all checks once and prints them as "nodeagent check" does.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			status, err := status.AskStatus(cmd.Context(), o.socket(cmd.Context()))
			if err != nil {
				return checkInstead(cmd, o, err)
			}
			return o.answer(cmd.OutOrStdout(), status, func(w io.Writer) error { return printStatus(w, status, all) },
				statusExit(status))
		},
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "also list the checks without findings")
	return cmd
}

// checkInstead replaces status if the agent is dead or does not answer.
func checkInstead(cmd *cobra.Command, o *options, why error) error {
	cfg, err := o.load(cmd.Context())
	if err != nil {
		cfg = config.Default()
		why = fmt.Errorf("%w; and its configuration is invalid: %w", why, err)
	}
	if !o.json() {
		screen := screenOf(cmd.OutOrStdout())
		text := sentence(why) + ". These are the findings of one run of the checks; only a running agent " +
			"knows their age, and the reports."
		if errors.Is(why, status.ErrNotRunning) {
			text += " Start it with: systemctl start nodeagent."
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%s\n\n", screen.paint(red, screen.wrap(text, 0, 0)))
	}
	if err := checkNow(cmd, o, cfg, nil, why); err != nil {
		return err
	}
	return &exitError{Code: exitCouldNotTell} // no agent observes this node
}

// sentence returns an error with a capital letter.
func sentence(err error) string {
	text := oneLine(err.Error())
	return strings.ToUpper(text[:1]) + text[1:]
}

func statusExit(s status.Status) error {
	faulty := slices.ContainsFunc(s.Findings, func(b finding.Believed) bool { return b.Severity != finding.Info })
	unknown := slices.ContainsFunc(s.Checks, func(c status.CheckStatus) bool {
		return c.Status == finding.StatusUnknown
	})
	switch {
	case faulty:
		return &exitError{Code: exitProblems}
	case unknown || len(s.Trouble) > 0:
		return &exitError{Code: exitCouldNotTell}
	}
	return nil
}

// statusScreen prints a status for people, problems first.
type statusScreen struct {
	screen
	strings.Builder
	status status.Status
}

func printStatus(w io.Writer, s status.Status, all bool) error {
	p := &statusScreen{screen: screenOf(w), status: s}
	p.head()
	p.findings()
	p.unknown()
	p.leftovers()
	p.repairs()
	p.reported()
	p.fleet()
	p.agent()
	p.checks(all)
	_, err := io.WriteString(w, p.String())
	return err
}

func (p *statusScreen) head() {
	counts := map[finding.Severity]int{}
	for _, f := range p.status.Findings {
		counts[f.Severity]++
	}
	var verdict []string
	for _, severity := range []finding.Severity{finding.Fatal, finding.Warning, finding.Info} {
		if n := counts[severity]; n > 0 {
			verdict = append(verdict, p.paint(severityColour(severity), fmt.Sprintf("%d %s", n, severity)))
		}
	}
	unknown := 0
	for _, c := range p.status.Checks {
		if c.Status == finding.StatusUnknown {
			unknown++
		}
	}
	switch {
	case unknown > 0:
		verdict = append(verdict, p.paint(yellow, fmt.Sprintf("%d could not tell", unknown)))
	case len(verdict) == 0:
		verdict = append(verdict, p.paint(green, "nothing is wrong"))
	}
	fmt.Fprintf(p, "%s: %s   %s\n", p.paint(bold, p.status.Node), strings.Join(verdict, ", "),
		p.paint(faint, fmt.Sprintf("nodeagent %s, pid %d, up %s", p.status.Version, p.status.PID,
			ago(p.status.Now, p.status.Started))))
}

func severityColour(s finding.Severity) string {
	switch s {
	case finding.Fatal:
		return red
	case finding.Warning:
		return yellow
	}
	return ""
}

// indent is the column of the texts after a label.
const indent = 9

func (p *statusScreen) findings() {
	advice := map[string]string{}
	for _, c := range slices.Concat(everyCheck(), agent.OwnChecks()) {
		advice[c.ID] = c.Advice
	}
	conditions := map[string]string{}
	for _, c := range p.status.Checks {
		conditions[c.Check] = c.Condition
	}
	for _, f := range p.status.Findings {
		fmt.Fprintf(p, "\n%s%s\n", p.column(severityColour(f.Severity), strings.ToUpper(string(f.Severity)), indent),
			p.wrap(fmt.Sprintf("%s %s, for %s", f.Reason, f.Subject, ago(p.status.Now, f.Raised)), indent, indent))
		p.line(f.Latest)
		if condition := conditions[f.Check]; condition != "" && f.Severity == finding.Fatal {
			p.line("reported as node condition " + condition)
		}
		if suggestion := f.Suggestion(); suggestion != "" {
			p.line("suggested action: " + suggestion)
		}
		next := "explain: nodeagent explain " + f.Check
		if what := cmp.Or(f.Facts["advice"], advice[f.Check]); what != "" {
			next = "next: " + what
		}
		p.line(next)
	}
}

// line prints a text below a label.
func (p *statusScreen) line(text string) {
	fmt.Fprintf(p, "%s%s\n", strings.Repeat(" ", indent), p.wrap(text, indent, indent))
}

// section prints lines below a title, if there are any.
func (p *statusScreen) section(colour, title string, lines []string) {
	if len(lines) > 0 {
		fmt.Fprintf(p, "\n%s\n", p.paint(colour, title))
	}
	for _, line := range lines {
		p.line(line)
	}
}

// unknown lists the checks that cannot tell.
func (p *statusScreen) unknown() {
	var lines []string
	lacks := blindness{}
	for _, c := range p.status.Checks {
		if c.Error == "" && c.Status != finding.StatusUnknown {
			continue
		}
		if c.Access != nil {
			lacks.add(c.Check, *c.Access)
			continue
		}
		text := c.Check
		if c.Status == finding.StatusUnknown {
			text += ", since " + ago(p.status.Now, c.Since)
		}
		if c.Error != "" {
			text += ": " + oneLine(c.Error)
		}
		lines = append(lines, text)
	}
	for _, lack := range lacks {
		lines = append(lines, lack.text())
	}
	p.section(yellow, "CANNOT TELL", lines)
}

func (p *statusScreen) leftovers() {
	if p.status.Leftovers == nil {
		return
	}
	objects := slices.DeleteFunc(slices.Clone(p.status.Leftovers.Objects), func(o object.Assessment) bool {
		return o.Verdict != object.Leftover && o.Verdict != object.Candidate
	})
	same := groupedBy(objects, func(o object.Assessment) string { return fmt.Sprint(o.Verdict, o.Kind, o.Pod, o.Why) })
	fmt.Fprintf(p, "\n%s\n", p.paint(faint, fmt.Sprintf("LEFT BEHIND BY DELETED PODS (inspected %s ago; release is %s)",
		ago(p.status.Now, p.status.Leftovers.At), p.status.Release.Mode)))
	for _, o := range same[:min(len(same), maxLeftovers)] {
		kind := string(o[0].Kind)
		if len(o) > 1 {
			kind += fmt.Sprintf(" (%d)", len(o))
		}
		p.line(fmt.Sprintf("%s %s of %s: %s", o[0].Verdict, kind, podName(o[0].Pod), o[0].Why))
	}
	if more := len(same) - maxLeftovers; more > 0 {
		p.line(fmt.Sprintf("and %d more: nodeagent inspect", more))
	}
	if len(objects) == 0 {
		p.line("nothing")
	}
	for _, last := range p.status.Release.Last {
		p.line(last)
	}
	if q := p.status.Release.Quarantine; q != nil && q.Entries > 0 {
		p.line(fmt.Sprintf("in quarantine: %d entries, %d of %d bytes, in %s; %d will be removed within a day",
			q.Entries, q.Bytes, q.MaxBytes, q.Dir, q.Due))
	}
}

// repairs shows possible and past repairs.
func (p *statusScreen) repairs() {
	s := p.status.Repair
	if len(s.Steps) == 0 && len(s.Last) == 0 {
		return
	}
	var lines []string
	if s.Stopped != "" {
		lines = append(lines, "repairs are stopped: "+s.Stopped)
	}
	if s.Doing != "" {
		lines = append(lines, "being done: "+s.Doing)
	}
	for _, step := range s.Steps {
		verb := "planned"
		if step.Refused {
			verb = "refused"
		}
		text := fmt.Sprintf("%-11s %s of %s", verb, step.Action, step.Subject.Name)
		if step.Does != "" {
			text += ": " + step.Does
		}
		if step.Blocked != "" {
			text += " (not done: " + step.Blocked + ")"
		}
		lines = append(lines, oneLine(text))
	}
	for _, last := range s.Last {
		lines = append(lines, oneLine(last))
	}
	p.section(faint, "REPAIRS", lines)
}

// maxLeftovers keeps the status on one screen.
const maxLeftovers = 10

func (p *statusScreen) reported() {
	var lines []string
	names := map[string]string{"condition": "conditions of the Node", "configmap": "conditions as a ConfigMap",
		"event": "events on the Node", "eventcenter": "event center"}
	for _, t := range p.status.Sinks {
		lines = append(lines, cmp.Or(names[t.Reporter], t.Reporter)+": "+sinkText(t, p.status.Now.Wall))
	}
	p.section(faint, "REPORTED", lines)
}

func sinkText(t status.SinkStatus, now time.Time) string {
	var parts []string
	since := func(at time.Time) string { return now.Sub(at).Round(time.Second).String() }
	if t.Failing.IsZero() && !t.Last.IsZero() {
		parts = append(parts, "last written "+since(t.Last)+" ago")
	}
	if !t.Failing.IsZero() {
		parts = append(parts, fmt.Sprintf("NOT WRITTEN for %s: %s", since(t.Failing), t.Why))
	}
	if t.Seen != nil {
		parts = append(parts, fmt.Sprintf("seen there %s ago: %s", since(t.Seen.At), t.Seen.Shows))
	}
	if t.Waiting > 0 {
		parts = append(parts, fmt.Sprintf("%d waiting", t.Waiting))
	}
	if t.Dropped > 0 {
		parts = append(parts, fmt.Sprintf("%d dropped because too many waited", t.Dropped))
	}
	if t.Quarantined > 0 {
		parts = append(parts, fmt.Sprintf("%d set aside because they are refused", t.Quarantined))
	}
	if len(parts) == 0 {
		return "nothing to write yet"
	}
	if t.Endpoint != "" {
		parts = append(parts, t.Endpoint)
	}
	return strings.Join(parts, "; ")
}

// fleet shows the fleet's budgets that this node holds, waits for or may not have.
func (p *statusScreen) fleet() {
	f := p.status.Fleet
	var lines []string
	for _, l := range []struct{ what, text string }{{"slot held for ", f.Slot}, {"waits for a slot for ", f.Waiting},
		{"", f.Refused}, {"not isolated: ", f.IsolationSpent}} {
		if l.text != "" {
			lines = append(lines, l.what+l.text)
		}
	}
	p.section(bold, "FLEET BUDGET", lines)
}

func (p *statusScreen) agent() {
	trouble := slices.Clone(p.status.Trouble)
	if !p.status.Readiness.Ready {
		trouble = append(trouble, p.status.Readiness.Why...)
	}
	p.section(yellow, "THE AGENT ITSELF", trouble)
}

// checks sums up the checks without findings, or lists them.
func (p *statusScreen) checks(all bool) {
	var fine, absent []status.CheckStatus
	for _, c := range p.status.Checks {
		switch c.Status {
		case finding.StatusHealthy:
			fine = append(fine, c)
		case finding.StatusNotApplicable:
			absent = append(absent, c)
		}
	}
	if !all {
		fmt.Fprintf(p, "\n%s\n", p.paint(faint,
			fmt.Sprintf("%d checks: %d without fatal findings, %d do not apply here (--all lists them)",
				len(p.status.Checks), len(fine), len(absent))))
		return
	}
	fmt.Fprintf(p, "\n%s\n", p.paint(faint, "CHECKS"))
	for _, c := range append(fine, absent...) {
		fmt.Fprintf(p, "  %-15s %-26s since %-10s %s\n", c.Status, c.Check, ago(p.status.Now, c.Since), c.Why)
	}
}

// ago returns how long before now a moment was.
func ago(now, then finding.Timestamp) string {
	d := now.Since(then)
	if now.Boot != then.Boot {
		d = now.Wall.Sub(then.Wall)
	}
	return d.Round(time.Second).String()
}
