package main

import (
	"strings"
	"testing"
	"text/template"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/report"
)

// A report has leftovers for a hundred ended pods, and the parts that it lacks.
func TestReportAsText(t *testing.T) {
	perHundred := 1.5
	r := report.Report{Missing: []string{"one", "another"}, Leftovers: report.Leftovers{PodsEnded: 200, PerHundred: &perHundred}}
	var text strings.Builder
	parsed, err := template.New("verbs").Funcs(functions()).Parse(verbTexts)
	if err == nil {
		err = parsed.ExecuteTemplate(&text, "report", r)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"NOT COUNTED: one, another\n", "leftovers\t1.50\tfor a hundred of 200 pods"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in\n%s", want, text.String())
		}
	}
}
