package main

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/remediate/release"
)

func assessment(uid string, verdict object.Verdict) object.Assessment {
	return object.Assessment{Object: object.Object{Kind: object.Cgroup, ID: "/c/" + uid, Pod: object.Pod{UID: uid}},
		Verdict: verdict}
}

func exitOf(err error) int {
	exit := &exitError{}
	if errors.As(err, &exit) {
		return exit.Code
	}
	if err != nil {
		return -1
	}
	return exitFine
}

func podsWith(results ...release.Result) release.Outcome {
	var o release.Outcome
	for i, r := range results {
		o.Pods = append(o.Pods, release.PodOutcome{Group: string(rune('a' + i)), Result: r})
	}
	return o
}

func planOf(report object.Report, output string, out io.Writer) error {
	return cleaning{options: &options{output: output}, out: out, report: report, bench: &madeUpBench{}}.run(context.Background())
}

func TestCleanExit(t *testing.T) {
	var (
		live, leftover, candidate, unknown = object.Live, object.Leftover, object.Candidate, object.Unknown
		deaf                               = object.Gate{Name: "apiserver-heard", Why: "away"}
		young                              = object.Gate{Name: "kubelet-uptime", Why: "up for 5m"}
		blind                              = object.Gate{Name: hostGate, Why: "no hostPID"}
		failure                            = object.Failure{What: "mount", Error: "EIO"}
	)
	report := func(parts ...any) (r object.Report) {
		for i, part := range parts {
			switch part := part.(type) {
			case object.Verdict:
				r.Objects = append(r.Objects, assessment(string(rune('a'+i)), part))
			case object.Gate:
				r.Gates = append(r.Gates, part)
			case object.Failure:
				r.Errors = append(r.Errors, part)
			}
		}
		return r
	}
	for name, test := range map[string]struct {
		report  object.Report
		outcome release.Outcome
		plan    int // exit code of clean
		yes     int // and of clean --yes
	}{
		"nothing is there":             {report(), podsWith(), 0, 0},
		"all is live":                  {report(live), podsWith(), 0, 0},
		"all is live, a gate is young": {report(live, young), podsWith(), 0, 0},
		"released":                     {report(leftover), podsWith(release.Released), 1, 0},
		"released, with a candidate of the pod": {report(leftover, candidate),
			podsWith(release.Released, release.Released), 1, 0},
		"released, and another candidate":  {report(leftover, candidate), podsWith(release.Released), 1, 1},
		"released, and another is unknown": {report(leftover, unknown), podsWith(release.Released), 1, 2},
		"released, and a lister failed":    {report(leftover, failure), podsWith(release.Released), 1, 2},
		"not acted":                        {report(leftover), podsWith(release.NotActed), 1, 1},
		"incomplete":                       {report(leftover), podsWith(release.Incomplete), 1, 1},
		"stopped":                          {report(leftover), podsWith(release.Stopped), 1, 1},
		"interrupted":                      {report(leftover), podsWith(release.Interrupted), 1, 1},
		"a guard could not be asked": {report(leftover), release.Outcome{Stopped: "the pause is not known", Unknown: true,
			Pods: podsWith(release.NotActed).Pods}, 1, 2},
		"a guard is closed": {report(leftover), release.Outcome{Stopped: "paused", Pods: podsWith(release.NotActed).Pods},
			1, 1},
		"could not tell": {report(leftover), podsWith(release.CouldNotTell), 1, 2},
		"one released, one could not be decided": {report(leftover, leftover),
			podsWith(release.Released, release.CouldNotTell), 1, 2},
		"one could not be decided, one is left": {report(leftover, leftover),
			podsWith(release.CouldNotTell, release.Incomplete), 1, 1},
		"kill switch": {report(leftover), release.Outcome{Stopped: "kill switch"}, 1, 1},
		"another release is running": {report(leftover), release.Outcome{Stopped: "busy", Busy: true}, 1,
			2},
		"a gate is closed, objects are unknown": {report(unknown, deaf), podsWith(), 2, 2},
		"unknown alone":                         {report(live, unknown), podsWith(), 2, 2},
		"a lister failed":                       {report(live, failure), podsWith(), 2, 2},
		"the host is not seen":                  {report(live, blind), podsWith(), 2, 2},
		"candidates":                            {report(candidate, young), podsWith(), 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			if got := exitOf(planOf(test.report, "text", io.Discard)); got != test.plan {
				t.Errorf("clean: %d, want %d", got, test.plan)
			}
			if got := exitOf(planOf(test.report, "json", io.Discard)); got != test.plan {
				t.Errorf("clean -o json: %d, want %d", got, test.plan)
			}
			if got := exitOf(cleanExit(test.report, test.outcome)); got != test.yes {
				t.Errorf("clean --yes: %d, want %d", got, test.yes)
			}
		})
	}
}

// If clean could not decide anything, its output says why.
func TestCleanSaysWhatItCouldNotSee(t *testing.T) {
	report := object.Report{
		Objects: []object.Assessment{assessment("a", object.Unknown)},
		Gates:   []object.Gate{{Name: "kubelet-heard", Why: "connection refused"}},
		Errors:  []object.Failure{{What: "kubelet", Error: "connection refused"}},
	}
	for name, print := range map[string]func(io.Writer) error{
		"plan":    func(w io.Writer) error { return planOf(report, "text", w) },
		"outcome": func(w io.Writer) error { return printOutcome(w, report, release.Outcome{}) },
	} {
		var b strings.Builder
		_ = print(&b)
		for _, want := range []string{"could not inspect kubelet: connection refused", "gate closed: kubelet-heard",
			"UNKNOWN cgroup"} {
			if !strings.Contains(b.String(), want) {
				t.Errorf("%s: no %q in\n%s", name, want, b.String())
			}
		}
	}
}

// A release is printed as one line for each kind and result, however many objects there were.
func TestCleanFoldsItsOutcome(t *testing.T) {
	id := strings.Repeat("0123456789abcdef", 4)
	pod := object.Pod{UID: deadUID, Namespace: "shop", Name: "web-0"}
	o := release.PodOutcome{Pod: pod, Group: deadUID, Result: release.Incomplete, Why: "container " + id + " is left"}
	step := func(kind object.Kind, id, does string, result release.Result, facts map[string]string, err string) {
		o.Steps = append(o.Steps, release.StepOutcome{Result: result, Error: err, Step: release.Step{Kind: kind,
			ID: id, Pod: pod, Description: does,
			Object: object.Assessment{Object: object.Object{Kind: kind, ID: id, Facts: facts}}}})
	}
	step(object.Sandbox, id, "stop and remove sandbox "+id, release.Released, nil, "")
	for _, mount := range []string{"/a#1", "/b#2", "/c#3"} {
		step(object.Mount, mount, "unmount "+mount, release.Released, nil, "")
	}
	step(object.Mount, "/d#4", "unmount /d#4", release.Failed, nil, "unmount /d#4: busy")
	step(object.Mount, "/e#5", "unmount /e#5", release.Failed, nil, "unmount /e#5: busy")
	step(object.Mount, "/f#6", "unmount /f#6", release.Failed, nil, "the server is silent")
	for _, h := range []string{"cpu", "memory"} {
		c := "/sys/fs/cgroup/" + h + "/pod1"
		step(object.Cgroup, c, "rmdir "+c, release.Vanished, map[string]string{"hierarchy": h}, "it is gone")
	}
	step(object.PodDirectory, "/pods/1", "remove the files in /pods/1; not data", release.Vanished, nil, "it is gone")
	var b strings.Builder
	if err := printOutcome(&b, object.Report{}, release.Outcome{Pods: []release.PodOutcome{o}}); err != nil {
		t.Fatal(err)
	}
	want := `pod shop/web-0 (5d8d2d6a): incomplete: container 0123456789abc is left
  released    sandbox             0123456789abc: stop and remove sandbox
  released    mount ×3            /a#1 and 2 more: unmount
  failed      mount ×2            /d#4 and 1 more: unmount: unmount /d#4: busy
  failed      mount               /f#6: unmount: the server is silent
  vanished    cgroup ×2           /sys/fs/cgroup/*/pod1: rmdir
  vanished    pod-directory       /pods/1: remove the files; not data
Gained: 7 objects, 3 mounts, 2 cgroups; not known: 2 objects' space
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Error(diff)
	}
}

func TestCleanOnly(t *testing.T) {
	s := release.Defaults()
	s.Mode = release.On
	s.Kinds = map[object.Kind]release.Mode{object.Mount: release.DryRun}
	for _, names := range [][]string{{"mnt"}, {"log-link"}} {
		if err := onlyKinds(&s, names); err == nil {
			t.Errorf("%q is accepted", names)
		}
	}
	if err := onlyKinds(&s, []string{"cgroup", "mount"}); err != nil {
		t.Fatal(err)
	}
	for kind, want := range map[object.Kind]release.Mode{object.Cgroup: release.On,
		object.Mount: release.DryRun, object.Process: release.Off, object.Sandbox: release.Off} {
		if got := s.ModeOf(kind); got != want {
			t.Errorf("%s: %s, want %s", kind, got, want)
		}
	}
}

func TestCleanOfPod(t *testing.T) {
	named := assessment("a", object.Leftover)
	named.Pod.Namespace, named.Pod.Name = "ns", "web"
	nameless, other := assessment("a", object.Unknown), assessment("b", object.Leftover)
	nobodys := assessment("", object.Leftover)
	all := object.Report{Objects: []object.Assessment{named, nameless, other, nobodys}}
	for name, want := range map[string]int{"": 4, "a": 2, "web": 2, "ns/web": 2, "x/web": 0, "b": 1, "/": 0} {
		if got := len(ofPod(all, name).Objects); got != want {
			t.Errorf("--pod %q: %d objects, want %d", name, got, want)
		}
	}
}
