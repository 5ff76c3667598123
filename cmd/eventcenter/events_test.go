package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
)

// A pod's thirty cgroups are one line, and no name fills the screen.
func TestEventsAreFolded(t *testing.T) {
	item := func(offset uint64, kind, subject, message string) api.Item {
		text, err := json.Marshal(map[string]any{"type": "io.github.nodeagent." + kind, "severity": "info",
			"partitionkey": "n", "subject": subject, "data": map[string]string{"message": message}})
		must(t, err)
		return api.Item{Offset: offset, Event: text}
	}
	id := strings.Repeat("0123456789abcdef", 4)
	var got []string
	for _, row := range folded([]api.Item{
		item(1, "fault.raised.v1", "disk/Readonly/filesystem/%2Fdata", "takes no writes"),
		item(2, "leftover.gone.v1", "leftovers/LeftoverGone/sandbox/"+id, "gone"),
		item(3, "leftover.gone.v1", "leftovers/LeftoverGone/cgroup/%2Fa", "gone"),
		item(4, "leftover.gone.v1", "leftovers/LeftoverGone/cgroup/%2Fb", "gone"),
		item(5, "agent.started.v1", "", ""), item(6, "agent.started.v1", "", ""),
		item(7, "leftover.gone.v1", "leftovers/LeftoverGone/cgroup/"+strings.Repeat("x", 1000), strings.Repeat("y", 1000)),
	}) {
		cells := strings.Split(row, "\t")
		got = append(got, strings.Join(append(cells[:1], cells[2:]...), "|"))
	}
	x, y := strings.Repeat("x", 1000), strings.Repeat("y", 60)
	want := []string{
		"1|fault.raised.v1|info|n|disk Readonly filesystem /data|takes no writes",
		"2|leftover.gone.v1|info|n|leftovers sandbox 0123456789abc|gone",
		"3|leftover.gone.v1|info|n|leftovers cgroup /a and 1 more|gone",
		"5|agent.started.v1|info|n||", "6|agent.started.v1|info|n||",
		"7|leftover.gone.v1|info|n|leftovers cgroup " + x[:23] + "…" + x[:40] + "|" + y + "…" + y,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
