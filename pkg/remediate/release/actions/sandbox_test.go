package actions

import (
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// The grace period of a container is its pod's, limited by the configured one.
func TestContainerGrace(t *testing.T) {
	s := Settings{ContainerGrace: 30 * time.Second}
	for asked, want := range map[string]time.Duration{
		"5": 5 * time.Second, "30": 30 * time.Second, "3600": 30 * time.Second, "0": 0,
		"": 30 * time.Second, "-1": 30 * time.Second, "soon": 30 * time.Second, "99999999999": 30 * time.Second,
	} {
		if got := graceOf(asked, s); got != want {
			t.Errorf("%q: %s, want %s", asked, got, want)
		}
	}
}

// A runtime cannot stop containers whose processes are frozen.
func TestFrozenIsNotStopped(t *testing.T) {
	frozen, thawed := leftover(object.Cgroup, "/c"), leftover(object.Cgroup, "/d")
	frozen.Facts = map[string]string{"frozen": "true"}
	alive, zombie := leftover(object.Process, "7"), leftover(object.Process, "8")
	zombie.Facts = map[string]string{"state": "Z"}
	for name, test := range map[string]struct {
		rest []object.Assessment
		want string
	}{
		"frozen with a process":     {[]object.Assessment{thawed, frozen, zombie, alive}, "frozen"},
		"frozen without a process":  {[]object.Assessment{thawed, frozen}, ""},
		"frozen with a zombie":      {[]object.Assessment{frozen, zombie}, ""},
		"not frozen with a process": {[]object.Assessment{thawed, alive}, ""},
	} {
		for _, action := range []Action{sandboxAction(), containerAction()} {
			got := action.Needs(leftover(action.Kind, "x"), test.rest, Settings{})
			if (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
				t.Errorf("%s: %s: %q, want %q", action.Kind, name, got, test.want)
			}
		}
	}
}
