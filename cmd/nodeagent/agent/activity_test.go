package agent

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/remediate/release"
)

// stateMap is a detect.StateStore in memory.
type stateMap map[string][]byte

func (m stateMap) Load(key string) ([]byte, bool) { value, ok := m[key]; return value, ok }
func (m stateMap) Save(key string, value []byte)  { m[key] = value }

// reports is one run of the agent; it collects everything sent to its reporters.
type reports struct {
	*activities
	got []finding.Activity
}

func startReports(t *testing.T, state stateMap, dir string) *reports {
	t.Helper()
	r := &reports{activities: newActivities(state, slog.New(slog.DiscardHandler), dir, second(0))}
	r.send = func(a []finding.Activity) { r.got = append(r.got, a...) }
	return r
}

// expect compares the activities reported since the last call.
func (r *reports) expect(t *testing.T, what string, want ...string) {
	t.Helper()
	got := []string{}
	for _, a := range r.got {
		line := fmt.Sprintf("%s %s %s: %s", a.Severity, a.Kind, a.Subject, a.Message)
		if a.Repeated {
			line += " (repeated)"
		}
		got = append(got, line)
	}
	r.got = nil
	if diff := cmp.Diff(append([]string{}, want...), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func second(n int) finding.Timestamp {
	return finding.Timestamp{Wall: time.Unix(int64(n), 0).UTC(), Boot: "b", SinceBoot: time.Duration(n) * time.Second}
}

var web = object.Pod{UID: "u1", Namespace: "default", Name: "web"}

func passOf(at int, verdict object.Verdict, failures ...object.Failure) object.Report {
	report := object.Report{At: second(at), Errors: failures}
	if verdict != "" {
		report.Objects = []object.Assessment{{Verdict: verdict, Why: "nobody knows its pod",
			Object: object.Object{Kind: object.Mount, ID: "/m", Pod: web}}}
	}
	return report
}

const (
	foundMount = "warning leftover-found mount//m: mount /m is left over from pod default/web: nobody knows its pod"
	goneMount  = "info leftover-gone mount//m: mount /m of pod default/web is gone"
)

// A leftover is reported when it is found and when it is gone, not in each pass. An uncertain object is neither.
func TestLeftoversAreReportedOnTransitions(t *testing.T) {
	state := stateMap{}
	r := startReports(t, state, t.TempDir())
	r.inspected(passOf(1, object.Candidate))
	r.expect(t, "a candidate")
	r.inspected(passOf(2, object.Leftover))
	found := r.got[0]
	r.expect(t, "proven", foundMount)
	r.inspected(passOf(3, object.Leftover))
	r.inspected(passOf(4, object.Unknown))
	r.inspected(passOf(5, "", object.Failure{What: "mount", Error: "hangs"}))
	r.expect(t, "still there, or nothing could be learnt")

	r = startReports(t, state, t.TempDir())
	r.inspected(passOf(6, object.Leftover))
	if len(r.got) != 1 || r.got[0].ID != found.ID || r.got[0].Kind != finding.LeftoverPresent {
		t.Errorf("after a restart: %+v, want %s again", r.got, found.ID)
	}
	r.got = nil
	r.inspected(passOf(7, object.Leftover))
	r.expect(t, "still there after a restart")
	r.inspected(passOf(8, ""))
	r.expect(t, "gone", goneMount)
	r.inspected(passOf(9, object.Leftover))
	if again := r.got[0]; again.ID == found.ID {
		t.Error("found once more under the ID of the first time")
	}
	r.expect(t, "once more", foundMount)
	r.inspected(passOf(10, object.Live))
	r.expect(t, "in use again",
		"info leftover-gone mount//m: mount /m of pod default/web is no longer a leftover: nobody knows its pod")
}

// In dry-run a plan is reported once; if the action is off, it is not reported.
func TestPlansAreReportedOnce(t *testing.T) {
	r := startReports(t, stateMap{}, t.TempDir())
	r.inspected(passOf(1, object.Leftover))
	r.got = nil
	outcome := func(mode release.Mode, result release.Result) release.Outcome {
		step := release.Step{Kind: object.Mount, ID: "/m", Pod: web, Description: "unmount it", Mode: mode,
			Blocked: "mode is " + string(mode)}
		return release.Outcome{Pods: []release.PodOutcome{{Group: "u1", Result: release.NotActed,
			Steps: []release.StepOutcome{{Step: step, Result: result}}}}}
	}
	r.released(outcome(release.Off, release.NotActed), second(2))
	r.expect(t, "off")
	for at := range 3 {
		r.released(outcome(release.DryRun, release.NotActed), second(3+at))
	}
	r.expect(t, "dry-run", "info action-planned mount//m: mount /m: unmount it: mode is dry-run")
	r.released(outcome(release.On, release.Refused), second(6))
	r.expect(t, "refused", "info action-refused mount//m: mount /m: unmount it: mode is on")
}

// Finished actions are reported from the journal, with its times: once, in order, also across a restart.
func TestReleasesAreReportedFromTheJournal(t *testing.T) {
	dir, state := t.TempDir(), stateMap{}
	var journal []byte
	write := func(at int, event release.Event, result release.Result, why string) {
		record := release.Record{At: second(at), Event: event, Group: "u1", Pod: web, Result: result, Why: why}
		if event == release.Intent || event == release.End {
			record.Kind, record.ID = object.Mount, "/m"
		}
		if event == release.Intent {
			record.Does = "unmount it"
		}
		line, err := json.Marshal(record)
		if err != nil {
			t.Fatal(err)
		}
		journal = append(append(journal, line...), '\n')
		if err := os.WriteFile(filepath.Join(dir, "release.journal"), journal, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	acted := release.Outcome{Pods: []release.PodOutcome{{Group: "u1", Result: release.Incomplete}}}
	write(1, release.Begin, "", "")
	write(2, release.Finish, release.Incomplete, "of an earlier version")

	r := startReports(t, state, dir)
	r.inspected(passOf(3, object.Leftover))
	r.expect(t, "the journal of an earlier version is not reported", foundMount)
	write(4, release.Begin, "", "")
	write(5, release.Intent, "", "")
	write(6, release.End, release.Failed, "busy")
	write(7, release.Finish, release.Incomplete, "mount /m: busy")
	r.released(acted, second(8))
	started := r.got[0]
	if started.At != second(4) {
		t.Errorf("started at %v", started.At)
	}
	failed := []string{
		"info action-started pod/default/web: releasing leftovers of pod default/web",
		"info action-started mount//m: unmount it",
		"warning action-failed mount//m: mount /m of pod default/web: failed: busy",
		"warning action-failed pod/default/web: leftovers of pod default/web were not released: incomplete: mount /m: busy",
	}
	failed[3] += " (repeated)" // the attempt of the earlier version ended the same way
	r.expect(t, "failed", failed...)
	r.released(acted, second(9))
	r.expect(t, "nothing new in the journal")
	write(10, release.Begin, "", "")
	write(11, release.Finish, release.Incomplete, "mount /m: busy")
	r.released(acted, second(12))
	r.expect(t, "an attempt that came to nothing, again")

	r = startReports(t, state, dir)
	write(13, release.Begin, "", "")
	write(14, release.Intent, "", "")
	write(15, release.End, release.Released, "")
	write(16, release.Finish, release.Released, "")
	r.released(acted, second(17))
	r.expect(t, "released",
		"info action-started pod/default/web: releasing leftovers of pod default/web",
		"info action-started mount//m: unmount it",
		"info action-done mount//m: mount /m of pod default/web: released",
		"info leftover-released mount//m: mount /m of pod default/web was released",
		"info action-verified pod/default/web: leftovers of pod default/web are released: 1 mount")
	r.inspected(passOf(18, ""))
	r.expect(t, "what was released is not reported as gone")
}
