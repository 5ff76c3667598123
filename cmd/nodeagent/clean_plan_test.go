package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/remediate/release"
)

// guardedPlan has two pods: several guards are closed for one pod and an object of it, none for the other.
func guardedPlan() (steps []release.Step) {
	const other = "77777777-0000-4000-8000-000000000000"
	var report object.Report
	add := func(pod object.Pod, kind object.Kind, id string, facts map[string]string) {
		point, n, _ := strings.Cut(id, "#")
		report.Objects = append(report.Objects, object.Assessment{Verdict: object.Leftover,
			Object: object.Object{Kind: kind, ID: id, Pod: pod, Facts: facts, LabelsKnown: true,
				Identity: object.Identity{Mount: object.MountID{Point: point, Type: "tmpfs"}, Names: map[string]string{"n": n}}}})
	}
	web, db := object.Pod{UID: deadUID, Namespace: "shop", Name: "web-0"}, object.Pod{UID: other, Namespace: "db",
		Name: "db-0"}
	for _, h := range []string{"cpu", "memory"} {
		add(web, object.Cgroup, "/sys/fs/cgroup/"+h+"/pod1", map[string]string{"hierarchy": h})
	}
	add(web, object.Mount, "/m/a#1", nil)
	add(web, object.Mount, "/m/b#2", map[string]string{"refused": "the mount /m/b is another pod's"})
	add(web, object.Mount, "/m/c#3", nil)
	add(db, object.Cgroup, "/c", nil)
	report.Objects[0].OptOut = `its annotation nodeagent.github.io/release is "never"`
	report.Gates = []object.Gate{{Name: "apiserver-heard", Open: true, Why: "asked 1s ago"}}
	s := release.Defaults()
	s.Mode, s.OptOut = release.On, []string{"shop"}
	s.Kinds = map[object.Kind]release.Mode{object.Mount: release.DryRun}
	at := finding.Timestamp{Boot: "b", SinceBoot: 1e15}
	return release.Plan(report, release.Policy{Settings: s, Node: []release.Guard{
		{Name: "kill-switch", Open: true, Why: "/etc/nodeagent/stop does not exist"},
		{Name: "pause", Why: "paused by the annotation nodeagent.github.io/pause of the Node: maintenance"}}}, at)
}

// The plan is a tree: the answer of a guard about the node, a pod or a kind of objects is printed there once; open
// guards are counted, and named with --wide.
func TestCleanPrintsATreeWithEveryAnswer(t *testing.T) {
	for _, test := range []struct {
		wide bool
		want string
	}{
		{false, `guards of the node: 2 open, 1 closed
    closed  pause: paused by the annotation nodeagent.github.io/pause of the Node: maintenance
pod shop/web-0 (5d8d2d6a)
  mount
      /m/a#1
      /m/c#3
      → unmount (tmpfs)
      closed  mode: the mode is dry-run
  mount
      /m/b#2
      closed  action: refused: the mount is another pod's
      closed  mode: the mode is dry-run
  cgroup
      /sys/fs/cgroup/*/pod1 ×2
      → remove the empty cgroup
  guards: 5 open, 2 closed
      closed  opt-out-namespace: namespace shop is opted out
      closed  opt-out-pod: its annotation nodeagent.github.io/release is "never"
pod db/db-0 (77777777)
  cgroup
      /c
      → remove the empty cgroup
  guards: 9 open
`},
		{true, `guards of the node: 2 open, 1 closed
    open    kill-switch: /etc/nodeagent/stop does not exist
    closed  pause: paused by the annotation nodeagent.github.io/pause of the Node: maintenance
    open    gate apiserver-heard: asked 1s ago
pod shop/web-0 (5d8d2d6a)
  mount
      /m/a#1
      /m/c#3
      → unmount (tmpfs)
      open    action: it may act on such an object
      closed  mode: the mode is dry-run
  mount
      /m/b#2
      closed  action: refused: the mount is another pod's
      closed  mode: the mode is dry-run
  cgroup
      /sys/fs/cgroup/*/pod1 ×2
      → remove the empty cgroup
      open    action: it may act on such an object
      open    mode: the mode is on
  guards: 5 open, 2 closed
      closed  opt-out-namespace: namespace shop is opted out
      closed  opt-out-pod: its annotation nodeagent.github.io/release is "never"
      open    evidence: the verdict on none of its objects is unknown
      open    failures-of-pod: fewer than 3 releases of this pod have failed within a day
      open    back-off: no attempt that was too soon ago has failed
      open    one-running: it has no running container
      open    budget: 6 of 6 pods an hour are left
pod db/db-0 (77777777)
  cgroup
      /c
      → remove the empty cgroup
  guards: 9 open
      open    action: it may act on such an object
      open    mode: the mode is on
      open    opt-out-namespace: its namespace is not opted out
      open    opt-out-pod: neither an annotation nor labels of it that are known opt it out
      open    evidence: the verdict on none of its objects is unknown
      open    failures-of-pod: fewer than 3 releases of this pod have failed within a day
      open    back-off: no attempt that was too soon ago has failed
      open    one-running: it has no running container
      open    budget: 6 of 6 pods an hour are left
`},
	} {
		var b strings.Builder
		c := cleaning{options: &options{output: "text"}, out: &b, wide: test.wide}
		if err := c.printPlan(guardedPlan(), "Next.\n"); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(test.want+"Next.\n", b.String()); diff != "" {
			t.Errorf("wide %v: %s", test.wide, diff)
		}
	}
}

// With -o json every answer is included: the node's once, those of a pod and of an object with each step.
func TestCleanJSONHasEveryAnswer(t *testing.T) {
	var b strings.Builder
	c := cleaning{options: &options{output: "json"}, out: &b}
	if err := c.printPlan(guardedPlan(), ""); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Guards []release.Guard
		Steps  []struct {
			ID     string
			Guards struct{ Object, Pod []release.Guard }
		}
	}
	if err := json.Unmarshal([]byte(b.String()), &got); err != nil {
		t.Fatal(err)
	}
	steps := guardedPlan()
	if diff := cmp.Diff(steps[0].Guards.Node, got.Guards); diff != "" || len(got.Steps) != len(steps) {
		t.Errorf("%d steps of %d: %s", len(got.Steps), len(steps), diff)
	}
	for i, s := range got.Steps {
		want := steps[i].Guards
		want.Node = nil
		if diff := cmp.Diff(want, release.Guards{Object: s.Guards.Object, Pod: s.Guards.Pod}); diff != "" {
			t.Errorf("%s: %s", s.ID, diff)
		}
	}
	b.Reset()
	if err := c.printPlan(nil, ""); err != nil || !strings.Contains(b.String(), `"guards":[]`) {
		t.Errorf("%v: %s", err, b.String())
	}
}
