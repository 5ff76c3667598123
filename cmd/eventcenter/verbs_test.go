package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/report"
	"github.com/nodeagent/nodeagent/pkg/web/command"
)

// A report names the parts that it lacks.
func TestReportAsText(t *testing.T) {
	r := report.Report{Missing: []string{"one", "another"}}
	var text strings.Builder
	cmd := &cobra.Command{}
	cmd.SetOut(&text)
	o := command.Asker{Templates: verbTexts, Functions: functions()}
	if err := o.Print(cmd, "report", r, nil); err != nil {
		t.Fatal(err)
	}
	if want := "NOT COUNTED: one, another\n"; !strings.Contains(text.String(), want) {
		t.Errorf("no %q in\n%s", want, text.String())
	}
}
