package main

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checks"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// checkPage documents one check.
func checkPage(c detect.Check) string {
	var b strings.Builder
	if c.Doc.Why == "" { // a user's own check
		return fmt.Sprintf("%s: %s.\n\n**Runs** every %s.\n\n**Next.** %s\n", c.Domain, c.Summary, short(c.Every),
			c.Advice)
	}
	fmt.Fprintf(&b, "%s: %s.\n\n**Why it matters.** %s\n\n**Finds**\n\n", c.Domain, c.Summary, c.Doc.Why)
	for _, f := range c.Doc.Faults {
		fmt.Fprintf(&b, "* `%s` (%s): %s%s\n", f.Reason, f.Severity, f.When, suggested(f.Reason, "; suggested action: "))
	}
	b.WriteString("\n**Reads**\n\n")
	for _, r := range c.Doc.Reads {
		fmt.Fprintf(&b, "* %s\n", r)
	}
	if c.Doc.FalseAlarms == "" { // the daemon's own check: there is nothing to tune
		return b.String() + fmt.Sprintf("\n**Next.** %s\n", c.Advice)
	}
	fmt.Fprintf(&b, "\n**Runs** every %s, for at most %s%s. Raised %s; cleared %s.", short(c.Every),
		short(cmp.Or(c.Deadline, detect.DefaultDeadline)), wakesOf(c), hold(c.Policy.Raise), hold(c.Policy.Clear))
	if c.Condition.Type != "" {
		fmt.Fprintf(&b, " A fatal finding becomes the node condition `%s` (True is bad), or `%s` (True is good).",
			c.Condition.Type, c.Condition.ReadyType)
	}
	fmt.Fprintf(&b, "\n\n**False alarms.** %s\n\n**Next.** %s\n", c.Doc.FalseAlarms, c.Advice)
	return b.String()
}

// rulePage documents one rule.
func rulePage(r rules.Rule) string {
	var b strings.Builder
	if len(r.Emitters) > 0 {
		fmt.Fprintf(&b, "%s, a rule for the logs of daemons (%s), for saved logs (`nodeagent replay`): %s.\n\n",
			r.Domain,
			emittersOf(r), r.Summary)
		fmt.Fprintf(&b, "* reason `%s`, severity %s\n", r.Reason, ruleSeverity(r))
	} else {
		fmt.Fprintf(&b, "%s, a rule of the kernel log: %s.\n\n", r.Domain, r.Summary)
		fmt.Fprintf(&b, "* reason `%s`, severity %s\n* kept %s\n", r.Reason, ruleSeverity(r), ruleExpiry(r))
	}
	if line := suggested(r.Reason, "* suggested action "); line != "" && len(r.Emitters) == 0 && r.ConfirmedBy == "" {
		b.WriteString(line + "\n")
	}
	if r.Errors && r.Escalate.Count > 0 {
		b.WriteString("* " + direWords + "\n")
	}
	if r.Raise.Count > 1 {
		fmt.Fprintf(&b, "* raised by %d lines within %s\n", r.Raise.Count, short(r.Raise.Within))
	}
	if r.ConfirmedBy != "" && len(r.Emitters) > 0 {
		fmt.Fprintf(&b, "* in the running agent `%s` reads the state behind it\n", r.ConfirmedBy)
	} else if r.ConfirmedBy != "" {
		fmt.Fprintf(&b,
			"* the state behind it is read by `%s`, which raises and clears; the line makes it run at once\n",
			r.ConfirmedBy)
	}
	for _, p := range r.Patterns {
		fmt.Fprintf(&b, "* `%s`\n", p)
	}
	if r.Advice != "" { // a user's own rule may have none
		fmt.Fprintf(&b, "\n**Next.** %s\n", r.Advice)
	}
	return b.String()
}

// suggested returns the suggested action of a reason, after the text before; empty if there is none.
func suggested(reason, before string) string {
	if action := checks.SuggestedAction(reason); action != "" {
		return before + "`" + string(action) + "`"
	}
	return ""
}

// emittersOf names the daemons to whose log lines a rule applies.
func emittersOf(r rules.Rule) string {
	var names []string
	for _, s := range r.Emitters {
		names = append(names, string(s))
	}
	return strings.Join(names, ", ")
}

const direWords = "dire words say that something does not answer, could not be reset, is gone, is damaged or has run out"

func ruleSeverity(r rules.Rule) string {
	if r.Escalate.Count == 0 {
		return string(r.Severity)
	}
	text := fmt.Sprintf("%s; %s from %d in %s", r.Severity, r.EscalateSeverity, r.Escalate.Count,
		short(r.Escalate.Within))
	if r.Errors {
		text += " or by dire words"
	}
	return text
}

func ruleExpiry(r rules.Rule) string {
	if r.Expiry == rules.UntilBoot {
		return "until the next boot"
	}
	return "for " + short(r.Expiry)
}

func wakesOf(c detect.Check) string {
	var names []string
	for _, w := range c.Wakes {
		if name := string(w.Source); !strings.Contains(strings.Join(names, ", "), name) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return "; at once after a wake from " + strings.Join(names, ", ")
}

func hold(h finding.Hold) string {
	if h.Runs <= 1 && h.For == 0 {
		return "by the first run"
	}
	if h.For == 0 {
		return fmt.Sprintf("after %d runs", h.Runs)
	}
	return fmt.Sprintf("after %d runs over %s", max(h.Runs, 1), short(h.For))
}

// short prints a duration without its zeros: 1m0s is 1m.
func short(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}
