package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/report"
	"github.com/nodeagent/nodeagent/pkg/web/command"
)

// A report has leftovers for a hundred ended pods, and the parts that it lacks.
func TestReportAsText(t *testing.T) {
	perHundred := 1.5
	r := report.Report{Missing: []string{"one", "another"}, Leftovers: report.Leftovers{PodsEnded: 200, PerHundred: &perHundred}}
	var text strings.Builder
	cmd := &cobra.Command{}
	cmd.SetOut(&text)
	o := command.Asker{Templates: verbTexts, Functions: functions()}
	if err := o.Print(cmd, "report", r, nil); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"NOT COUNTED: one, another\n", "leftovers           1.50  for a hundred of 200 pods"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in\n%s", want, text.String())
		}
	}
}
