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

	"github.com/nodeagent/nodeagent/internal/agent"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

func newCheck(o *options) *cobra.Command {
	var list bool
	cmd := &cobra.Command{
		Use:   "check [ID...]",
		Short: "Look now, once, with all checks or the named ones",
		Long: `Look at this node now, once, with all checks or with the named ones.

Nothing is changed and no daemon is needed. What is found is what this one look saw: the daemon (nodeagent run) also asks
whether it lasts.`,
		RunE: func(cmd *cobra.Command, ids []string) error {
			cfg, err := o.load()
			if err != nil {
				return err
			}
			door, err := agent.OpenHost(cfg, quiet())
			if err != nil {
				return err
			}
			defer door.Close()
			aids := door.Aids(nil)
			checks, err := selectChecks(detect.Checks(cfg.Checks, aids), ids)
			if err != nil {
				return err
			}
			if list {
				return printList(cmd.OutOrStdout(), checks)
			}
			began := time.Now()
			looks := detect.LookOnce(cmd.Context(), door.Host, checks, aids.Witnesses.Saw)
			result := sumUp(looks)
			if o.json() {
				err = printJSON(cmd.OutOrStdout(), result)
			} else {
				err = printCheck(cmd.OutOrStdout(), door.Host.NodeName, checks, looks, time.Since(began))
			}
			if err != nil {
				return err
			}
			return result.exit()
		},
	}
	cmd.Flags().BoolVar(&list, "list", false, "list the checks instead")
	return cmd
}

func selectChecks(all []detect.Check, ids []string) ([]detect.Check, error) {
	if len(ids) == 0 {
		return all, nil
	}
	var selected []detect.Check
	for _, id := range ids {
		i := slices.IndexFunc(all, func(c detect.Check) bool { return c.ID == id })
		if i < 0 {
			var known []string
			for _, c := range all {
				known = append(known, c.ID)
			}
			return nil, fmt.Errorf("no check is called %q; there are %s", id, strings.Join(known, ", "))
		}
		selected = append(selected, all[i])
	}
	return selected, nil
}

// checkResult is the JSON contract of check.
type checkResult struct {
	Findings      []finding.Finding `json:"findings"`
	Errors        []checkError      `json:"errors"`
	NotApplicable []notApplicable   `json:"notApplicable"`
}

type checkError struct {
	Check string `json:"check"`
	Error string `json:"error"`
}

type notApplicable struct {
	Check string `json:"check"`
	Why   string `json:"why"`
}

func sumUp(looks []finding.Look) checkResult {
	result := checkResult{Findings: []finding.Finding{}, Errors: []checkError{}, NotApplicable: []notApplicable{}}
	for _, l := range looks {
		result.Findings = append(result.Findings, problems(l)...)
		if na, ok := errors.AsType[*finding.NotApplicableError](l.Err); ok {
			result.NotApplicable = append(result.NotApplicable, notApplicable{l.Check, na.Why})
		} else if l.Err != nil {
			result.Errors = append(result.Errors, checkError{l.Check, l.Err.Error()})
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

// problems returns what a single look may call a problem: a value between two thresholds is none.
func problems(l finding.Look) []finding.Finding {
	return slices.DeleteFunc(slices.Clone(l.Findings), func(f finding.Finding) bool { return f.Marginal })
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

// printCheck prints the looks for people, grouped by domain, what is wrong first.
func printCheck(w io.Writer, node string, checks []detect.Check, looks []finding.Look, took time.Duration) error {
	var b strings.Builder
	domains := map[string][]int{}
	for i, c := range checks {
		domains[c.Domain] = append(domains[c.Domain], i)
	}
	for _, domain := range sortedKeys(domains) {
		fmt.Fprintf(&b, "%s\n", strings.ToUpper(domain))
		for _, i := range domains[domain] {
			printLook(&b, checks[i], looks[i])
		}
		b.WriteString("\n")
	}
	result := sumUp(looks)
	fmt.Fprintf(&b, "%s: %d checks in %s: %s\n", cmp.Or(node, "this host"), len(checks), took.Round(time.Millisecond), result.verdict())
	_, err := io.WriteString(w, b.String())
	return err
}

func (r checkResult) verdict() string {
	if len(r.Findings) == 0 && len(r.Errors) == 0 {
		return "nothing is wrong"
	}
	var parts []string
	for _, severity := range []finding.Severity{finding.Fatal, finding.Warning, finding.Info} {
		n := 0
		for _, f := range r.Findings {
			if f.Severity == severity {
				n++
			}
		}
		if n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, severity))
		}
	}
	if n := len(r.Errors); n > 0 {
		parts = append(parts, fmt.Sprintf("%d could not tell", n))
	}
	return strings.Join(parts, ", ")
}

func printLook(b *strings.Builder, c detect.Check, l finding.Look) {
	found := problems(l)
	slices.SortFunc(found, finding.Compare)
	for _, f := range found {
		fmt.Fprintf(b, "  %-8s %-22s %s: %s\n", strings.ToUpper(string(f.Severity)), c.ID, f.Reason, f.Message)
	}
	if len(found) > 0 && c.Advice != "" {
		fmt.Fprintf(b, "  %-8s %-22s next: %s\n", "", "", c.Advice)
	}
	na, isNA := errors.AsType[*finding.NotApplicableError](l.Err)
	switch {
	case isNA:
		fmt.Fprintf(b, "  %-8s %-22s %s\n", "-", c.ID, na.Why)
	case l.Err != nil:
		fmt.Fprintf(b, "  %-8s %-22s could not tell: %v\n", "UNKNOWN", c.ID, l.Err)
	case len(found) == 0:
		fmt.Fprintf(b, "  %-8s %s\n", "ok", c.ID)
	}
}
