package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/report"
	"github.com/nodeagent/nodeagent/pkg/web/command"
)

// printed returns the text of an answer.
func printed(t *testing.T, name string, answer any) string {
	t.Helper()
	var text strings.Builder
	cmd := &cobra.Command{}
	cmd.SetOut(&text)
	o := command.Asker{Templates: verbTexts, Functions: functions()}
	must(t, o.Print(cmd, name, answer, nil))
	return text.String()
}

// A report names the parts that it lacks.
func TestReportAsText(t *testing.T) {
	text := printed(t, "report", report.Report{Missing: []string{"one", "another"}})
	if want := "NOT COUNTED: one, another\n"; !strings.Contains(text, want) {
		t.Errorf("no %q in\n%s", want, text)
	}
}

// A pod's thirty cgroups are one line, and no name fills the screen.
func TestEventsAreFolded(t *testing.T) {
	var list api.List
	add := func(kind, subject, message string) {
		text, err := json.Marshal(map[string]any{"type": "io.github.nodeagent." + kind, "severity": "info",
			"partitionkey": "n", "subject": subject, "data": map[string]string{"message": message}})
		must(t, err)
		list.Events = append(list.Events, api.Item{Offset: uint64(len(list.Events) + 1), Event: text})
	}
	add("fault.raised.v1", "disk/Readonly/filesystem/%2Fdata", "takes no writes")
	add("leftover.gone.v1", "leftovers/LeftoverGone/sandbox/"+strings.Repeat("0123456789abcdef", 4), "gone")
	add("leftover.gone.v1", "leftovers/LeftoverGone/cgroup/%2Fa", "gone")
	add("leftover.gone.v1", "leftovers/LeftoverGone/cgroup/%2Fb", "gone")
	add("agent.started.v1", "", "")
	add("agent.started.v1", "", "")
	add("leftover.gone.v1", "leftovers/LeftoverGone/cgroup/"+strings.Repeat("x", 1000), strings.Repeat("y", 1000))
	x, y, at := strings.Repeat("x", 1000), strings.Repeat("y", 60), " 0001-01-01T00:00:00Z "
	want := []string{"OFFSET RECEIVED TYPE SEVERITY NODE SUBJECT MESSAGE",
		"1" + at + "fault.raised.v1 info n disk Readonly filesystem /data takes no writes",
		"2" + at + "leftover.gone.v1 info n leftovers sandbox 0123456789abc gone",
		"3" + at + "leftover.gone.v1 info n leftovers cgroup /a and 1 more gone",
		"5" + at + "agent.started.v1 info n", "6" + at + "agent.started.v1 info n",
		"7" + at + "leftover.gone.v1 info n leftovers cgroup " + x[:23] + "…" + x[:40] + " " + y + "…" + y,
	}
	var got []string
	for line := range strings.Lines(printed(t, "events", list)) {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
