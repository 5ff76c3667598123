package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/test/harness"
	"github.com/nodeagent/nodeagent/test/need"
)

// podSort is a sort of pods; one pod of it lives and another is abandoned.
type podSort struct {
	name     string
	settings []string // lines of the pod's specification; nil: a static pod
	never    []object.Kind
	check    func(t *testing.T, of *bystanders) // that the pod is of this sort
}

// Pods of every sort: with their own user namespaces, on the host network, static. One of each lives and keeps all its
// objects, while the leftovers of the other are found and released.
func TestEverySortOfPod(t *testing.T) {
	need.Flag(t, *users, "-users: on a node whose pods can have users of their own")
	l := openLab(t)
	a := install(t, l, nil)
	ofNetwork := []object.Kind{object.Netns, object.Link, object.CNIAttachment, object.IPAMLease}
	var living []*bystanders
	var dead []*harness.Victim
	sorts := []podSort{
		{"users", []string{"hostUsers: false"}, nil, hasUsersOfItsOwn},
		{"network", []string{"hostNetwork: true"}, ofNetwork, func(*testing.T, *bystanders) {}},
		{"static", nil, nil, func(*testing.T, *bystanders) {}},
	}
	for _, sort := range sorts {
		for _, lives := range []bool{true, false} {
			name := fmt.Sprintf("sort-%s-%t", sort.name, lives)
			create := harness.NewVictim
			if sort.settings == nil {
				create = harness.NewStaticVictim
			}
			v, err := create(t.Context(), l, name, sort.settings...)
			if err != nil {
				t.Fatal(err)
			}
			if !lives {
				dead = append(dead, v)
				continue
			}
			b := beside(t, l, v)
			sort.check(t, b)
			living = append(living, b)
		}
	}
	if err := harness.Abandon(t.Context(), dead...); err != nil {
		t.Fatal(err)
	}
	atLeast := []object.Kind{object.Sandbox, object.Process, object.Mount, object.Cgroup, object.PodDirectory}
	proven := map[string]map[object.Kind]bool{}
	var last harness.Answer
	err := harness.WaitFor(t.Context(), "all that was left to be gone", func() error {
		var report inspected
		if _, err := a.JSON(t.Context(), &report, "inspect"); err != nil {
			return err
		}
		for _, o := range report.Objects {
			for i, b := range living {
				if o.Pod.UID == b.pod.UID && o.Verdict != object.Live && o.Verdict != object.Unknown {
					t.Errorf("%s %s of the living pod %s is %s: %s", o.Kind, o.ID, b.pod.Name, o.Verdict, o.Why)
				}
				for _, kind := range sorts[i].never {
					if o.Pod.UID == b.pod.UID && o.Kind == kind {
						t.Errorf("%s %s: it can have none", o.Kind, o.ID)
					}
				}
			}
			if o.Verdict == object.Leftover {
				if proven[o.Pod.UID] == nil {
					proven[o.Pod.UID] = map[object.Kind]bool{}
				}
				proven[o.Pod.UID][o.Kind] = true
			}
		}
		for _, v := range dead {
			var err error
			if !slices.ContainsFunc(atLeast, func(kind object.Kind) bool { return !proven[v.UID][kind] }) {
				last, err = a.CLI(t.Context(), "clean", "--yes", "--pod", "default/"+v.Name)
			}
			if err != nil {
				return err
			}
			if traces, err := v.Traces(t.Context()); err != nil || len(traces) > 0 {
				return fmt.Errorf("%s: there are %q, %w", v.Name, traces, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Errorf("%v; the last clean: exit code %d\n%s%s", err, last.Code, last.Stdout, last.Stderr)
	}
	for i, v := range dead {
		t.Logf("%s: proven %v", v.Name, proven[v.UID])
		for _, kind := range atLeast {
			if !proven[v.UID][kind] {
				t.Errorf("%s of %s was not proven to be left", kind, v.Name)
			}
		}
		if err := v.CheckCanary(); err != nil {
			t.Errorf("user data was harmed: %v", err)
		}
		living[i].check(t)
	}
}

// hasUsersOfItsOwn fails unless the processes of a pod are in their own user namespace.
func hasUsersOfItsOwn(t *testing.T, of *bystanders) {
	t.Helper()
	own, err := os.Readlink("/proc/self/ns/user")
	if err != nil {
		t.Fatal(err)
	}
	theirs := map[string]bool{}
	for name := range of.before {
		if pid, ok := strings.CutPrefix(name, "process "); ok {
			link, err := os.Readlink("/proc/" + pid + "/ns/user")
			if err != nil {
				t.Fatal(err)
			}
			theirs[link] = true
		}
	}
	if len(theirs) != 1 || theirs[own] {
		t.Fatalf("user namespaces %v, the node's is %s", theirs, own)
	}
}
