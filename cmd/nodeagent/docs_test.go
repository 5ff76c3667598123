package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host/distro"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/kernellog/rules"
	"github.com/nodeagent/nodeagent/pkg/inspect/kinds"
	"github.com/nodeagent/nodeagent/pkg/remediate/repair"
)

var update = flag.Bool("update", false, "write the generated pages anew")

// TestDocs fails if a generated page differs from the output of the code.
func TestDocs(t *testing.T) {
	for page, text := range map[string]string{
		"checks.md":         checksPage(everyCheck(), rules.Kernel(), rules.Daemons()),
		"leftover-kinds.md": kindsPage(kinds.Specs()),
		"repair-actions.md": actionsPage(repair.Actions()),
		"distributions.md":  distributionsPage(distro.All()),
	} {
		page = "../../docs/" + page
		if *update {
			if err := os.WriteFile(page, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		got, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(text, string(got)); diff != "" {
			t.Errorf("%s: run go test ./cmd/nodeagent -run Docs -update (-code +page):\n%s", page, diff)
		}
	}
}

// kindsPage is docs/leftover-kinds.md.
func kindsPage(specs []kinds.Spec) string {
	var b strings.Builder
	b.WriteString("# Kinds of leftovers\n\nGenerated from the code by `go test ./cmd/nodeagent -run Docs -update`. " +
		"[Leftovers](leftovers.md) describes how they are proven.\n\nThe apiserver and kubelet must not know the pod of an " +
		"object; the witnesses of the third column must not know its sandbox or container either.\n\n" +
		"| kind | what it is | gone from | what it does | release |\n|---|---|---|---|---|\n")
	for _, s := range specs {
		release := "[by the agent](leftovers.md#release)"
		switch {
		case s.ReportOnly != "":
			release = "reported only: " + s.ReportOnly
		case s.OptIn:
			release += ", [once it is opted in](leftovers.md#below-cri)"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", s.Kind, cell(s.What), strings.Join(s.GoneFrom, ", "),
			cell(s.Harm), cell(release))
	}
	return b.String()
}

// actionsPage is docs/repair-actions.md.
func actionsPage(actions []repair.Action) string {
	var b strings.Builder
	b.WriteString("# Repair actions\n\nGenerated from the code by `go test ./cmd/nodeagent -run Docs -update`. " +
		"[Repairs](remediation.md) lists the guards that hold for all of them.\n\n| action | what it does | mode unless " +
		"configured |\n|---|---|---|\n")
	for _, a := range actions {
		fmt.Fprintf(&b, "| [%s](#%s) | %s | %s |\n", a.Name, a.Name, cell(a.Summary), repair.Defaults().ModeOf(a))
	}
	for _, a := range actions {
		fmt.Fprintf(&b, "\n## %s\n\n%s%s.\n\n", a.Name, strings.ToUpper(a.Summary[:1]), a.Summary[1:])
		for _, answer := range a.Answers {
			fmt.Fprintf(&b, "**Answers** [%s](checks.md#%s): %s\n\n", answer.Check, answer.Check,
				strings.Join(answer.Reasons, ", "))
		}
		if a.Disrupts {
			b.WriteString("**Disrupts**: off unless configured; waits for a maintenance window; needs a slot of the " +
				"fleet's budget.\n\n")
		}
		for _, list := range []struct {
			title string
			lines []string
		}{{"Needs", a.Needs}, {"Does", a.Does}, {"Never", a.Never}} {
			fmt.Fprintf(&b, "**%s**\n\n", list.title)
			for _, line := range list.lines {
				fmt.Fprintf(&b, "* %s\n", line)
			}
			b.WriteString("\n")
		}
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// checksPage is docs/checks.md.
func checksPage(checks []detect.Check, rules, daemons []rules.Rule) string {
	var b strings.Builder
	b.WriteString("# Checks\n\nGenerated from the code by `go test ./cmd/nodeagent -run Docs -update`. `nodeagent " +
		"explain CHECK` prints one of them.\n")
	b.WriteString("\n| check | domain | finds |\n|---|---|---|\n")
	for _, c := range checks {
		fmt.Fprintf(&b, "| [%s](#%s) | %s | %s |\n", c.ID, c.ID, c.Domain, c.Summary)
	}
	for _, c := range checks {
		fmt.Fprintf(&b, "\n## %s\n\n%s", c.ID, checkPage(c))
	}
	b.WriteString("\n# Rules of the kernel log\n\nIf a rule names a state, the check of that name reads it, raises " +
		"and clears, and the line only makes it run at once; if that check has no state to read on a host, the " +
		"line is evidence by itself. In the table, " + direWords + ".\n\n" +
		"| rule | reason | severity | state | kept | means | next |\n|---|---|---|---|---|---|---|\n")
	for _, r := range rules {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s |\n", r.ID, r.Reason, ruleSeverity(r), r.ConfirmedBy,
			ruleExpiry(r), cell(r.Summary), cell(r.Advice))
	}
	b.WriteString("\n# Rules for the logs of daemons\n\nFor saved logs only (`nodeagent replay`): in the running " +
		"agent the checks read the state itself. A rule applies to the log lines of its emitters only: the unit of a " +
		"journal record, the tag of a syslog line.\n\n| rule | emitters | reason | severity | state | means | next " +
		"|\n|---|---|---|---|---|---|---|\n")
	for _, r := range daemons {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s |\n", r.ID, emittersOf(r), r.Reason, ruleSeverity(r),
			r.ConfirmedBy, cell(r.Summary), cell(r.Advice))
	}
	return b.String()
}

// cell escapes a text for one cell of a table.
func cell(text string) string { return strings.ReplaceAll(text, "|", "\\|") }
