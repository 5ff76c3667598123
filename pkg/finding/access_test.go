package finding

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A check that is blind because the agent lacks access becomes unknown, and has no finding of its own: the lack is
// reported once for all checks. If the check was blind for another reason before, that finding is cleared.
func TestLackIsNoFindingOfTheCheck(t *testing.T) {
	denied := &AccessError{Access: Access{Lack: "list pods", Grant: "a role"}, Err: errors.New("forbidden")}
	other := errors.New("read /proc/x: no such file")
	tracker := NewTracker(map[string]Policy{"disk": {BlindAfter: time.Minute}}, nil)
	for i, step := range []struct {
		at   Timestamp
		err  error
		want []string
	}{
		{at(1), nil, []string{"unknown→healthy"}},
		{at(60), fmt.Errorf("list: %w", denied), nil},
		{at(62), denied, []string{"healthy→unknown"}},
		{at(70), other, []string{"raised CheckCouldNotTell"}},
		{at(80), denied, []string{"cleared CheckCouldNotTell"}},
		{at(90), nil, []string{"unknown→healthy"}},
	} {
		got := summary(tracker.Observe(Observation{Check: "disk", At: step.at, Err: step.err}))
		if diff := cmp.Diff(step.want, got); diff != "" {
			t.Errorf("step %d (-want +got):\n%s", i+1, diff)
		}
		lack := tracker.State()["disk"].Access
		if want := AccessOf(step.err); (lack == nil) != (want == nil) {
			t.Errorf("step %d: lacks %v", i+1, lack)
		}
	}
}

func TestAccessOf(t *testing.T) {
	a := &AccessError{Access: Access{Lack: "a"}, Err: errors.New("x")}
	b := &AccessError{Access: Access{Lack: "b"}, Err: errors.New("y")}
	one, two := Subject{Kind: "k", Name: "1"}, Subject{Kind: "k", Name: "2"}
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"none":                       {nil, ""},
		"another error":              {errors.New("x"), ""},
		"wrapped":                    {fmt.Errorf("w: %w", a), "a"},
		"all subjects lack the same": {Partial(map[Subject]error{one: a, two: fmt.Errorf("w: %w", a)}), "a"},
		"subjects lack two":          {Partial(map[Subject]error{one: a, two: b}), ""},
		"one subject lacks nothing":  {Partial(map[Subject]error{one: a, two: errors.New("x")}), ""},
	} {
		got := ""
		if lack := AccessOf(test.err); lack != nil {
			got = lack.Lack
		}
		if got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}
