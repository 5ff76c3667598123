package systemd

import (
	"slices"
	"testing"

	"github.com/godbus/dbus/v5"
	"github.com/google/go-cmp/cmp"
)

// Active units are listed only if they are not visible otherwise.
func TestPodUnits(t *testing.T) {
	answer := func(call *dbus.Message) []any {
		states, _ := call.Body[0].([]string)
		patterns, _ := call.Body[1].([]string)
		switch {
		case len(states) == 0 && slices.Contains(patterns, "run-*.scope"):
			return statuses([3]string{"run-r1.scope", "active", "running"})
		case slices.Equal(states, []string{"inactive", "failed"}):
			return statuses([3]string{"cri-containerd-a.scope", "failed", "failed"})
		}
		return failure("UnknownMethod")
	}
	got, err := fakeBus{answer: answer}.listen(t).client().PodUnits(t.Context())
	want := []PodUnit{{"run-r1.scope", "described", "active", "running"}, {"cri-containerd-a.scope", "described", "failed", "failed"}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%s %v", diff, err)
	}
	if _, err := (fakeBus{answer: func(*dbus.Message) []any { return failure("AccessDenied") }}).listen(t).client().
		PodUnits(t.Context()); err == nil {
		t.Error("no error")
	}
}
