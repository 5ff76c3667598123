package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/cmd/nodeagent/agent"
	"github.com/nodeagent/nodeagent/cmd/nodeagent/config"
	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checks"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

func newCheck(o *options) *cobra.Command {
	var list bool
	cmd := &cobra.Command{
		Use:   "check [ID...]",
		Short: "Run all checks, or the named ones, once",
		Long: `Run all checks, or the named ones, on this node once.

The command changes nothing and needs no daemon. The daemon (nodeagent run) reports a fault only when it lasts; this
command prints the findings of one run. It takes less than a second; after at most 15 seconds it names the checks
that do not answer.`,
		RunE: func(cmd *cobra.Command, ids []string) error {
			cfg, err := o.load(cmd.Context())
			if err != nil {
				return err
			}
			if list {
				checks, err := selectChecks(agent.Checks(cfg, &host.Host{Clock: host.Now}, checks.Deps{}), ids)
				if err != nil {
					return err
				}
				return printList(cmd.OutOrStdout(), checks)
			}
			return checkNow(cmd, o, cfg, ids, nil)
		},
	}
	cmd.Flags().BoolVar(&list, "list", false, "list the checks instead")
	return cmd
}

// checkNow runs the named checks once, or all, and prints the findings. agentTrouble is why no agent was asked.
func checkNow(cmd *cobra.Command, o *options, cfg config.Config, ids []string, agentTrouble error) error {
	clients, err := agent.OpenHost(cfg, quiet())
	if err != nil {
		return err
	}
	defer clients.Close()
	deps := clients.Deps(nil)
	checks, err := selectChecks(agent.Checks(cfg, clients.Host, deps), ids)
	if err != nil {
		return err
	}
	deps.Sources.Enable(checks) // a record whose check does not run is evidence by itself
	began := time.Now()
	shown := showProgress(cmd.ErrOrStderr(), len(checks))
	ctx, cancel := context.WithTimeoutCause(cmd.Context(), checkLimit, fmt.Errorf("no answer within %s", checkLimit))
	defer cancel()
	observations := detect.RunOnce(ctx, clients.Host, checks, func(l finding.Observation) {
		deps.Sources.Observe(l)
		shown.done(l.Check)
	})
	shown.end()
	result := summarize(observations)
	if agentTrouble != nil {
		result.Agent = agentTrouble.Error()
	}
	return o.answer(cmd.OutOrStdout(), result, func(w io.Writer) error {
		return printCheck(w, clients.Host.NodeName, checks, observations, time.Since(began))
	}, result.exit())
}

// checkLimit is how long all checks together may take. A runtime that does not answer gets eight seconds; the daemon
// gives some checks longer.
const checkLimit = 15 * time.Second

func selectChecks(all []detect.Check, ids []string) ([]detect.Check, error) {
	if len(ids) == 0 {
		return all, nil
	}
	var selected []detect.Check
	for _, id := range ids {
		i := slices.IndexFunc(all, func(c detect.Check) bool { return c.ID == id })
		if i < 0 {
			return nil, fmt.Errorf("unknown check %q; nodeagent check --list names them", id)
		}
		selected = append(selected, all[i])
	}
	return selected, nil
}

// checkResult is the JSON contract of check.
type checkResult struct {
	Agent         string            `json:"agent,omitempty"` // of status: why the running agent could not be asked
	Findings      []finding.Finding `json:"findings"`
	Errors        []checkError      `json:"errors"`
	NotApplicable []notApplicable   `json:"notApplicable"`
	Lacks         blindness         `json:"lacks,omitempty"` // missing access, because of which checks have errors
}

type checkError struct {
	Check string `json:"check"`
	Error string `json:"error"`
}

type notApplicable struct {
	Check string `json:"check"`
	Why   string `json:"why"`
}

func summarize(observations []finding.Observation) checkResult {
	result := checkResult{Findings: []finding.Finding{}, Errors: []checkError{}, NotApplicable: []notApplicable{}}
	for _, l := range observations {
		result.Findings = append(result.Findings, problems(l)...)
		if na, ok := errors.AsType[*finding.NotApplicableError](l.Err); ok {
			result.NotApplicable = append(result.NotApplicable, notApplicable{l.Check, na.Why})
		} else if l.Err != nil {
			result.Errors = append(result.Errors, checkError{l.Check, l.Err.Error()})
			if lack := finding.AccessOf(l.Err); lack != nil {
				result.Lacks.add(l.Check, *lack)
			}
		}
	}
	for i := range result.Findings {
		if result.Findings[i].Facts == nil {
			result.Findings[i].Facts = map[string]string{}
		}
	}
	slices.SortFunc(result.Findings, finding.Compare)
	return result
}

// problems returns the findings of a single run that are problems; a value between two thresholds is not one.
func problems(l finding.Observation) []finding.Finding {
	return slices.DeleteFunc(slices.Clone(l.Findings), func(f finding.Finding) bool { return f.BelowRaise })
}

func (r checkResult) exit() error {
	isProblem := func(f finding.Finding) bool { return f.Severity != finding.Info }
	switch {
	case slices.ContainsFunc(r.Findings, isProblem):
		return &exitError{Code: exitProblems}
	case len(r.Errors) > 0:
		return &exitError{Code: exitCouldNotTell}
	}
	return nil
}

// printCheck prints observations for people, grouped by domain, problems first. Healthy checks take one line.
func printCheck(w io.Writer, node string, checks []detect.Check, observations []finding.Observation,
	took time.Duration) error {
	p := &checkScreen{screen: screenOf(w)}
	byID := map[string]finding.Observation{}
	for _, l := range observations {
		byID[l.Check] = l
	}
	for _, domain := range groupedBy(checks, func(c detect.Check) string { return c.Domain }) {
		p.domain(domain, byID)
	}
	result := summarize(observations)
	for _, lack := range result.Lacks {
		p.text(yellow, "UNKNOWN", lack.text())
	}
	if os.Geteuid() != 0 && len(result.Errors) > 0 {
		fmt.Fprintf(p, "%s\n",
			p.wrap("This was not run as root: only root can read many of the unknown parts.", 0, 0))
	}
	fmt.Fprintf(p, "%s: %d checks in %s: %s\n", p.paint(bold, cmp.Or(node, "this host")), len(checks),
		took.Round(time.Millisecond), result.verdict())
	_, err := io.WriteString(w, p.String())
	return err
}

type checkScreen struct {
	screen
	strings.Builder
}

func (p *checkScreen) domain(checks []detect.Check, observations map[string]finding.Observation) {
	fmt.Fprintf(p, "%s\n", p.paint(bold, strings.ToUpper(checks[0].Domain)))
	var fine, absent []string
	for _, c := range checks {
		l := observations[c.ID]
		found := problems(l)
		_, na := errors.AsType[*finding.NotApplicableError](l.Err)
		switch {
		case na:
			absent = append(absent, c.ID)
		case len(found) == 0 && l.Err == nil:
			fine = append(fine, c.ID)
		default:
			p.check(c, found, l.Err)
		}
	}
	p.names(green, "ok", fine)
	p.names(faint, "absent", absent)
	p.WriteString("\n")
}

// names lists checks that need no explanation.
func (p *checkScreen) names(colour, label string, names []string) {
	if len(names) > 0 {
		p.text(colour, label, strings.Join(names, ", "))
	}
}

// text prints a label and the text beside it.
func (p *checkScreen) text(colour, label, text string) {
	const indent = 10
	fmt.Fprintf(p, "  %s%s\n", p.column(colour, label, indent-2), p.wrap(text, indent, indent))
}

func (p *checkScreen) check(c detect.Check, found []finding.Finding, err error) {
	slices.SortFunc(found, finding.Compare)
	general := false // advice of the check; a finding of the kernel's log has its rule's
	for _, f := range found {
		p.text(severityColour(f.Severity), strings.ToUpper(string(f.Severity)), f.Reason+": "+f.Message)
		if suggestion := f.Suggestion(); suggestion != "" {
			p.text("", "", "suggested action: "+suggestion)
		}
		if advice := f.Facts["advice"]; advice != "" {
			p.text("", "", fmt.Sprintf("next: %s (nodeagent explain %s)", strings.TrimSuffix(advice, "."),
				cmp.Or(f.Facts["rule"], c.ID)))
		} else {
			general = true
		}
	}
	if general && c.Advice != "" {
		p.text("", "", fmt.Sprintf("next: %s (nodeagent explain %s)", strings.TrimSuffix(c.Advice, "."), c.ID))
	}
	if err != nil && finding.AccessOf(err) == nil { // missing access is printed once, at the end
		p.text(yellow, "UNKNOWN", fmt.Sprintf("%s: could not tell: %s", c.ID, oneLine(err.Error())))
	}
}

func (r checkResult) verdict() string {
	if len(r.Findings) == 0 && len(r.Errors) == 0 {
		return "nothing is wrong"
	}
	counts := finding.Counts{}
	for _, f := range r.Findings {
		counts[f.Severity]++
	}
	parts := counts.Texts()
	if n := len(r.Errors); n > 0 {
		parts = append(parts, fmt.Sprintf("%d could not tell", n))
	}
	return strings.Join(parts, ", ")
}

// blindness lists the access that the agent lacks, each with the checks that it makes unknown.
type blindness []blindChecks

type blindChecks struct {
	finding.Access

	Checks []string `json:"checks"`
}

func (b *blindness) add(check string, lack finding.Access) {
	i := slices.IndexFunc(*b, func(known blindChecks) bool { return known.Access == lack })
	if i < 0 {
		i = len(*b)
		*b = append(*b, blindChecks{Access: lack})
	}
	(*b)[i].Checks = append((*b)[i].Checks, check)
}

func (b blindChecks) text() string {
	return fmt.Sprintf("%s: %s; to grant it: %s", strings.Join(b.Checks, ", "), oneLine(b.Lack), oneLine(b.Grant))
}

// printList lists the checks for people.
func printList(w io.Writer, checks []detect.Check) error {
	var b strings.Builder
	for _, domain := range groupedBy(checks, func(c detect.Check) string { return c.Domain }) {
		fmt.Fprintf(&b, "%s\n", strings.ToUpper(domain[0].Domain))
		for _, c := range domain {
			fmt.Fprintf(&b, "  %-24s %s\n", c.ID, c.Summary)
		}
		b.WriteString("\n")
	}
	fmt.Fprintf(&b, "%d checks; nodeagent explain CHECK explains its sources, thresholds and false alarms\n",
		len(checks))
	_, err := io.WriteString(w, b.String())
	return err
}
