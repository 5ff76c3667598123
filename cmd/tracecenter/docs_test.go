package main

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/pkg/trace/reason"
	"github.com/nodeagent/nodeagent/pkg/trace/stage"
	"github.com/nodeagent/nodeagent/pkg/web/command"
	"github.com/nodeagent/nodeagent/test/trace/texts"
)

var update = flag.Bool("update", false, "write the generated documents")

// docs/trace-reasons.md is generated: go test -run TestDocs ./cmd/tracecenter -update.
func TestDocs(t *testing.T) {
	const name = "../../docs/trace-reasons.md"
	want := reasonsPage(t)
	if *update {
		if err := os.WriteFile(name, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(name); err != nil || string(got) != want {
		t.Errorf("%s has drifted (%v): go test -run TestDocs ./cmd/tracecenter -update", name, err)
	}
}

// docs/trace.md mentions every verb and flag of the program.
func TestDocsNameVerbsAndFlags(t *testing.T) {
	page, err := os.ReadFile("../../docs/trace.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, cmd := range newRoot().Commands() {
		if !strings.Contains(string(page), "tracecenter "+cmd.Name()) && cmd.Name() != "help" && cmd.Name() != "completion" {
			t.Errorf("no verb %s", cmd.Name())
		}
	}
	for _, flag := range []string{"kubeconfig", "listen", "tls-cert", "tls-key", "oidc", "promised", "keep-days", "exclude-namespaces", "overrides", "alertmanager", "alert-levels", "event-center", "event-center-ca", "event-center-token-file", "cluster", "flow-schemas", "pool-label"} {
		if newServe(&command.Asker{}).Flags().Lookup(flag) == nil || !strings.Contains(string(page), "`--"+flag+"`") {
			t.Errorf("no flag %s", flag)
		}
	}
}

func reasonsPage(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	cell := func(s string) string { return strings.ReplaceAll(s, "|", `\|`) }
	b.WriteString("# Reasons of misses\n\nGenerated from `pkg/trace/reason`; `go test -run TestDocs ./cmd/tracecenter -update` writes it.\n" +
		"[trace.md](trace.md) describes how a reason is chosen.\n\n| reason | class | signal | what to do |\n|---|---|---|---|\n")
	for _, r := range reason.Reasons() {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", r.Reason, r.Class, cell(r.Signal), cell(r.Advice))
	}
	b.WriteString("\n## Texts\n\nThe first row that fits decides. The example is a text as the component of that version writes it.\n\n" +
		"| reason | stage | example | source |\n|---|---|---|---|\n")
	for _, e := range texts.All(t) {
		row, _ := reason.Match(e.From, e.Text)
		fmt.Fprintf(&b, "| `%s` | %s | %s: `%s` | %s |\n", row.Reason, stage.Describe(row.Stage).Name, e.From, cell(strings.ReplaceAll(e.Text, "`", "'")), e.Source)
	}
	return b.String()
}

// docs/slo.md has every alert.
func TestSLOPage(t *testing.T) {
	page, err := os.ReadFile(sloPage)
	if err != nil {
		t.Fatal(err)
	}
	rules, err := os.ReadFile("../../packaging/monitoring/tracecenter.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range regexp.MustCompile(`(?m)^ *- alert: (\w+)$`).FindAllSubmatch(rules, -1) {
		if !strings.Contains(string(page), "| "+string(found[1])+" |") {
			t.Errorf("no alert %s", found[1])
		}
	}
}

const sloPage = "../../docs/slo.md"

// metricsAreDocumented checks that docs/slo.md has each metric of a scrape.
func metricsAreDocumented(t *testing.T, scrape string) {
	t.Helper()
	page, err := os.ReadFile(sloPage)
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range regexp.MustCompile(`(?m)^# TYPE (\w+) `).FindAllStringSubmatch(scrape, -1) {
		if !strings.Contains(string(page), "`"+found[1]+"`") {
			t.Errorf("no metric %s", found[1])
		}
	}
}
