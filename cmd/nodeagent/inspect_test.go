package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/remediate/release"
)

// hangingBench is a bench whose calls return when the test ends.
type hangingBench struct {
	end   chan struct{}
	close bool // hangs, too
}

func (h hangingBench) Pass(context.Context, ...object.Kind) (object.Report, error) {
	return object.Report{Errors: []object.Failure{{What: "a pass"}}}, nil
}

func (h hangingBench) Close() error {
	if h.close {
		<-h.end
	}
	return nil
}

func TestInspectEndsInTime(t *testing.T) {
	for name, test := range map[string]struct {
		openHangs, closeHangs bool
		openErr               error
		want                  string // the subject of the report's failure
		most                  time.Duration
	}{
		"all is well":      {want: "a pass"},
		"opening hangs":    {openHangs: true, want: "layout", most: openLimit},
		"closing hangs":    {closeHangs: true, want: "a pass", most: closeLimit},
		"cannot be opened": {openErr: errors.New("no configuration")},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				end := make(chan struct{})
				begun := time.Now()
				report, err := inspectOnce(t.Context(), func(context.Context) (bench, error) {
					if test.openHangs {
						<-end
					}
					return hangingBench{end, test.closeHangs}, test.openErr
				}, nil)
				took := time.Since(begun)
				close(end)
				synctest.Wait()
				if !errors.Is(err, test.openErr) || took > test.most {
					t.Errorf("%v after %s", err, took)
				}
				if err == nil && (len(report.Errors) != 1 || report.Errors[0].What != test.want || test.openHangs &&
					!strings.Contains(report.Errors[0].Error, "hangs")) {
					t.Errorf("errors: %+v", report.Errors)
				}
				if err == nil && inspectExit(report).(*exitError).Code != exitCouldNotTell { //nolint:errorlint // it is no other
					t.Error("exit code")
				}
			})
		})
	}
}

// A missing right is printed once, on one screen, however many objects it hides.
func TestInspectTellsACauseOnce(t *testing.T) {
	const cause = "https://127.0.0.1:10250/pods: status 403: Forbidden"
	id := strings.Repeat("0123456789abcdef", 4)
	report := object.Report{
		Errors: []object.Failure{{What: "kubelet", Error: cause}, {What: "lease", Error: "no socket"},
			{What: "task", Error: "no socket"}},
		Gates: []object.Gate{{Name: "kubelet-heard", Why: "kubelet's /pods: " + cause},
			{Name: "host-namespaces", Open: true, Why: "the agent sees the host's processes"}},
		Notes: []string{"kubelet refuses"},
	}
	for i := range 100 {
		for _, kind := range []object.Kind{object.Sandbox, object.Cgroup, object.Cgroup} {
			report.Objects = append(report.Objects, object.Assessment{Verdict: object.Unknown,
				Why:    "kubelet could not be heard: " + cause,
				Object: object.Object{Kind: kind, ID: id, Pod: object.Pod{UID: fmt.Sprint(i)}}})
		}
	}
	report.Objects = append(report.Objects, object.Assessment{Verdict: object.Leftover, Why: "no witness knows it",
		Object: object.Object{Kind: object.Sandbox, ID: id, Pod: object.Pod{UID: "x", Namespace: "n", Name: "p"}}})
	var b strings.Builder
	if err := printReport(&b, report, release.Settings{}, false, false); err != nil {
		t.Fatal(err)
	}
	want := `pod n/p (x): 1 leftover
  sandbox             0123456789abc
  why: no witness knows it
  witnesses: 
  next: nodeagent clean shows what would be released, nodeagent clean --yes releases it

UNKNOWN sandbox: 100, cgroup: 200 (pods: 100; --wide lists them)
      why: kubelet could not be heard: https://127.0.0.1:10250/pods: status 403: Forbidden

could not inspect lease, task: no socket
gate closed: kubelet-heard: as above
note: kubelet refuses
301 objects: 1 leftover 0 candidate 300 unknown 0 unowned 0 live 0 foreign
`
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Error(diff)
	}
	b.Reset()
	if err := printReport(&b, report, release.Settings{}, false, true); err != nil {
		t.Fatal(err)
	}
	if wide := b.String(); strings.Count(wide, id) < 200 || strings.Count(wide, cause) < 100 ||
		!strings.Contains(wide, "could not inspect kubelet: "+cause) {
		t.Errorf("--wide leaves something out:\n%s", wide)
	}
}
