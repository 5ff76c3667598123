package release

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

func TestSweepAction(t *testing.T) {
	const day = 24 * time.Hour
	for name, test := range map[string]struct {
		kept mutate.Kept
		keep time.Duration
		want sweepAction
	}{
		"young":                {mutate.Kept{Age: day}, 30 * day, keepEntry},
		"a day before the end": {mutate.Kept{Age: 29 * day}, 30 * day, reportEntry},
		"reported already": {mutate.Kept{Age: 29*day + time.Hour, Reported: true, ReportedAt: 29 * day}, 30 * day,
			keepEntry},
		"reported a day ago": {mutate.Kept{Age: 30 * day, Reported: true, ReportedAt: 29 * day}, 30 * day,
			emptyEntry},
		"too old, but never reported": {mutate.Kept{Age: 90 * day}, 30 * day, reportEntry},
		"too old, reported just now": {mutate.Kept{Age: 90 * day, Reported: true, ReportedAt: 90 * day}, 30 * day,
			keepEntry},
		"kept for ever":   {mutate.Kept{Age: 900 * day, Reported: true}, 0, keepEntry},
		"not the agent's": {mutate.Kept{Age: 900 * day, Reported: true, Foreign: "x"}, day, keepEntry},
		"kept longer since it was reported": {mutate.Kept{Age: 30 * day, Reported: true, ReportedAt: 29 * day},
			60 * day, keepEntry},
		"a short time": {mutate.Kept{Age: time.Hour}, 2 * time.Hour, reportEntry},
		"a short time, reported": {mutate.Kept{Age: 2 * time.Hour, Reported: true, ReportedAt: time.Hour},
			2 * time.Hour, emptyEntry},
	} {
		if got := sweepActionFor(test.kept, test.keep); got != test.want {
			t.Errorf("%s: %v, want %v", name, got, test.want)
		}
	}
}

// An entry ages only while the machine runs.
func TestOlder(t *testing.T) {
	year := 365 * 24 * time.Hour
	at := func(boot string, up time.Duration) finding.Timestamp {
		return finding.Timestamp{Boot: boot, SinceBoot: up, Wall: time.Unix(0, 0)}
	}
	kept := mutate.Kept{Age: time.Hour, Aged: at("a", time.Hour)}
	later := at("a", 3*time.Hour)
	later.Wall = later.Wall.Add(year) // the clock jumped
	for name, test := range map[string]struct {
		now  finding.Timestamp
		want time.Duration
	}{
		"two hours":       {later, 3 * time.Hour},
		"another boot":    {at("b", year), time.Hour},
		"the time before": {at("a", 0), time.Hour},
	} {
		if got := older(kept, test.now); got.Age != test.want || got.Aged != test.now {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// The data of an emptyDir is moved if permitted, reported before its removal, and removed when its time is over.
func TestQuarantineLifeCycle(t *testing.T) {
	w := newWorld(t)
	now := host.Now()
	w.Host.Clock = func() finding.Timestamp { return now }
	pass := func(d time.Duration) { now.SinceBoot += d; now.Wall = now.Wall.Add(d) }
	w.settings.AllowEmptyDir = true
	w.settings.Quarantine.Keep = 72 * time.Hour
	uid := mutatetest.UID(t)
	w.Write(w.PodDir(uid, "volumes/kubernetes.io~empty-dir/db/table"), "precious")
	foreign := w.Write(filepath.Join(w.Mutator.QuarantineDir(), "somebody's"), "1234")
	if err := os.Chmod(w.Mutator.QuarantineDir(), 0o700); err != nil {
		t.Fatal(err)
	}
	outside := w.Write(filepath.Join(w.Dir, "outside"), "alive")
	r := w.runner()
	release := func() {
		t.Helper()
		if _, err := r.Release(t.Context(), w.inspect()); err != nil {
			t.Fatal(err)
		}
	}
	release()
	state := func() QuarantineState {
		t.Helper()
		state, err := r.Quarantine(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return state
	}
	if s := state(); s.Entries != 2 || s.Foreign != 1 || s.Bytes < 12 || s.MaxBytes != 1<<30 || s.Due != 0 {
		t.Fatalf("%+v", s)
	}
	records := func(event Event) (found []Record) {
		t.Helper()
		all, _, err := ReadJournal(filepath.Join(w.Dir, "state"))
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range all {
			if r.Group == quarantineGroup && r.Event == event {
				found = append(found, r)
			}
		}
		return found
	}
	pass(47 * time.Hour)
	release()
	if n := len(records(Notice)); n != 0 {
		t.Errorf("reported %d times after 47 hours", n)
	}
	pass(2 * time.Hour)
	release()
	notices := records(Notice)
	if len(notices) != 1 || !strings.Contains(notices[0].Does, "will be removed from quarantine when it has been "+
		"kept for 72h0m0s") ||
		notices[0].Pod.UID != uid || notices[0].Identity.File.Inode == 0 {
		t.Errorf("%+v", notices)
	}
	if s := state(); s.Entries != 2 || s.Due != 1 || s.Oldest != 49*time.Hour {
		t.Errorf("%+v", s)
	}
	pass(23 * time.Hour) // 72 hours, but reported 23 hours ago
	release()
	if s := state(); s.Entries != 2 {
		t.Errorf("%+v", s)
	}
	pass(time.Hour)
	for name, set := range map[string]func(on bool){
		"kill switch": func(on bool) {
			if on {
				w.Write(w.settings.KillSwitch, "")
			} else {
				os.Remove(w.settings.KillSwitch)
			}
		},
		"paused": func(on bool) { w.paused = map[bool]string{true: "annotation"}[on] },
	} {
		set(true)
		release()
		set(false)
		if s := state(); s.Entries != 2 {
			t.Errorf("%s: %+v", name, s)
		}
	}
	w.settings.Mode = DryRun
	if _, err := w.runner().Release(t.Context(), w.inspect()); err != nil || state().Entries != 2 {
		t.Errorf("dry-run: %v, %+v", err, state())
	}
	release()
	if s := state(); s.Entries != 1 || s.Foreign != 1 {
		t.Errorf("%+v", s)
	}
	if intents, ends := records(Intent), records(End); len(intents) != 1 || len(ends) != 1 ||
		ends[0].Result != Released ||
		!strings.Contains(intents[0].Does, "volumes/kubernetes.io~empty-dir/db of pod "+uid) {
		t.Errorf("%+v, %+v", intents, ends)
	}
	pass(1000 * time.Hour)
	release()
	for _, name := range []string{foreign, outside} {
		if _, err := os.Lstat(name); err != nil {
			t.Error(err)
		}
	}
}

// Data that does not fit stays in place, and the plan says so.
func TestQuarantineIsFull(t *testing.T) {
	w := newWorld(t)
	w.settings.AllowEmptyDir = true
	w.settings.Quarantine.MaxBytes = 9000
	uid := mutatetest.UID(t)
	w.Write(w.PodDir(uid, "etc-hosts"), "hosts")
	for _, volume := range []string{"one", "two"} { // each fits alone
		w.Write(w.PodDir(uid, "volumes/kubernetes.io~empty-dir", volume, "table"), strings.Repeat("x", 4000))
	}
	before := mutatetest.Snapshot(t, w.PodDir(uid))
	steps, err := w.runner().Plan(t.Context(), w.inspect())
	if err != nil || len(steps) != 1 || !strings.Contains(steps[0].Blocked, "quarantine is full") {
		t.Errorf("%v, %+v", err, steps)
	}
	if text := describe(w.release()); !strings.Contains(text, "quarantine is full: it holds 0 bytes") {
		t.Error(text)
	}
	unchanged(t, "the pod's directory", before, mutatetest.Snapshot(t, w.PodDir(uid)))
	w.settings.Quarantine.MaxBytes = 1 << 20
	w.release()
	if left := w.left(uid); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}
