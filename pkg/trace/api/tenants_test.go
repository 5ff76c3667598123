package api_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/pkg/trace/follow"
	"github.com/nodeagent/nodeagent/pkg/trace/probe"
	"github.com/nodeagent/nodeagent/pkg/trace/record"
	"github.com/nodeagent/nodeagent/pkg/trace/verdict"
)

// The report says whose requests were throttled, apart from the components, and whose pods took the last capacity.
func TestReportOfTenants(t *testing.T) {
	f := newFixture(t, 30)
	placed := act(record.Creation, "greedy", verdict.Delivered, sunday.Add(-1), "")
	placed.Timeline.CPU, placed.Timeline.Bytes = 2500, 3<<30
	full := act(record.Creation, "full", verdict.Missed, sunday.Add(-1), "CapacityExhausted")
	if err := f.kept.Save(t.Context(), follow.Batch{Judged: []follow.Act{placed, full}}); err != nil {
		t.Fatal(err)
	}
	if err := f.kept.SaveProbes(t.Context(), []probe.Count{{Minute: sunday.Add(-3600e9), Component: probe.FlowSchemas, Instance: "tenant-red", Good: 30, Bad: 10},
		{Minute: sunday.Add(-3600e9), Component: "apiserver", Instance: "10.0.0.1:6443", Good: 700}}); err != nil {
		t.Fatal(err)
	}
	r, err := f.api.Report(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Online) != 1 || r.Online[0].Component != "apiserver" {
		t.Errorf("components: %+v", r.Online)
	}
	if len(r.Requests) != 1 || r.Requests[0].Instance != "tenant-red" || *r.Requests[0].Rate != 0.75 || r.Requests[0].Samples != 40 {
		t.Errorf("requests: %+v", r.Requests)
	}
	if got := fmt.Sprint(r.Exhausted, r.Took); got != "1 [{default 2 2500 3221225472}]" {
		t.Error(got)
	}
	text, err := r.Mail()
	for _, want := range []string{"tenant-red", "75.00 %", "Who took the last capacity", "2.5", "3.0"} {
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("no %q in the mail, %v", want, err)
		}
	}
}
