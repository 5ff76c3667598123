package release

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	storagev1 "k8s.io/api/storage/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/remediate/release/csi"
)

// withNote makes a pod of which only its volume's note is left.
func (w *world) withNote(driver, handle string) (uid, note string) {
	w.t.Helper()
	uid = mutatetest.UID(w.t)
	return uid, w.Write(w.PodDir(uid, "volumes/kubernetes.io~csi/pvc-1/vol_data.json"),
		volumeNoteOf("pvc-1", handle, driver))
}

// stays runs a release, and checks that a note is still there and why.
func (w *world) stays(note, why string) {
	w.t.Helper()
	text := describe(w.release())
	if _, err := os.Lstat(note); err != nil || !strings.Contains(text, why) {
		w.t.Errorf("%v; want %q in: %s", err, why, text)
	}
}

// needed returns why the note of a pod's volume has to stay.
func (w *world) needed(uid, note string) string {
	w.t.Helper()
	entry := mutate.Entry{Path: "volumes/kubernetes.io~csi/pvc-1/vol_data.json", File: mutatetest.FileID(w.t, note)}
	return w.runner().tools.CSI.VolumeNeeded(w.t.Context(), uid, entry)
}

// goes runs a release, and checks that a note is in quarantine.
func (w *world) goes(note string) {
	w.t.Helper()
	text := describe(w.release())
	if _, err := os.Lstat(note); !os.IsNotExist(err) {
		w.t.Errorf("the note is still there: %v: %s", err, text)
	}
}

// One observation is no proof: the driver may be restarting. Observations are recorded while there may be a leftover,
// and survive the process; a failed one does not count.
func TestDriverObservationsAreRecorded(t *testing.T) {
	w := shortNode(t)
	now := host.Now()
	w.Host.Clock = func() finding.Timestamp { return now }
	pass := func(d time.Duration) { now.SinceBoot += d; now.Wall = now.Wall.Add(d) }
	if err := os.Remove(w.driverFile()); err != nil {
		t.Fatal(err)
	}
	_, note := w.withNote("a.example.com", "v-1")
	for range 3 {
		w.stays(note, "3 times over 10m0s are required") // also twice in a minute
		pass(10 * time.Second)
		w.stays(note, "3 times over 10m0s are required")
		pass(4 * time.Minute)
	}
	w.csiNode = func() (*storagev1.CSINode, error) { return nil, errors.New("away") }
	w.stays(note, "away")
	pass(2 * time.Minute)
	w.csiNode = nil
	w.goes(note) // three observations without it, the first 14 minutes ago

	// Evidence in between starts the proof again.
	_, note = w.withNote("a.example.com", "v-1")
	pass(4 * time.Minute)
	w.csiNode = func() (*storagev1.CSINode, error) { return namesDrivers("a.example.com"), nil }
	w.stays(note, "CSINode names it")
	w.csiNode = nil
	pass(4 * time.Minute)
	w.stays(note, "1 times over 0s")
}

// No observation is made or recorded if no leftover involves CSI, or if no release may run.
func TestDriverIsObservedOnlyIfNeeded(t *testing.T) {
	w := newWorld(t)
	asked := 0
	w.csiNode = func() (*storagev1.CSINode, error) { asked++; return namesDrivers(), nil }
	if err := os.Remove(w.driverFile()); err != nil {
		t.Fatal(err)
	}
	w.release()
	w.withNote("a.example.com", "v-1")
	w.settings.Mode = Off
	w.release()
	if asked != 0 {
		t.Errorf("asked %d times", asked)
	}
	w.settings.Mode = DryRun
	w.release()
	w.release()
	if asked != 1 { // the second one came too soon
		t.Errorf("in dry-run: asked %d times", asked)
	}
	if observations := w.driverObservations(); len(observations) != 1 {
		t.Errorf("%+v", observations)
	}
	// A pod that is terminating causes no observation, which would fail without tools.
	young := object.Assessment{Object: object.Object{Kind: object.PodDirectory}, Verdict: object.Candidate}
	young.FirstSeen = finding.Timestamp{Boot: "b", SinceBoot: time.Hour}
	at := finding.Timestamp{Boot: "b", SinceBoot: time.Hour + 2*time.Minute - 1}
	for _, report := range []object.Report{{}, {At: at, Objects: []object.Assessment{young}}} {
		new(csi.Evidence).Observe(t.Context(), report, nil)
	}
}

// A failed observation is logged once, not in each pass.
func TestDriverErrorIsLoggedOnce(t *testing.T) {
	w := newWorld(t)
	w.withNote("a.example.com", "v-1")
	now := host.Now()
	w.Host.Clock = func() finding.Timestamp { return now }
	var log bytes.Buffer
	runner := w.runner()
	runner.options.Log = slog.New(slog.NewTextHandler(&log, nil))
	for _, pass := range []struct {
		err  error
		logs int // so far
	}{{errors.New("away"), 1}, {errors.New("away"), 1}, {errors.New("refused"), 2}, {nil, 2},
		{errors.New("refused"), 3}} {
		w.csiNode = func() (*storagev1.CSINode, error) { return namesDrivers(), pass.err }
		now.SinceBoot += 3 * time.Minute
		if _, err := runner.survey(t.Context(), w.inspect()); err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(log.String(), "observe CSI drivers failed"); got != pass.logs {
			t.Errorf("%v: %d lines, want %d: %s", pass.err, got, pass.logs, log.String())
		}
	}
}

// The history is bounded.
func TestDriverObservationsAreBounded(t *testing.T) {
	w := newWorld(t)
	now := host.Now()
	w.Host.Clock = func() finding.Timestamp { return now }
	w.withNote("a.example.com", "v-1")
	evidence := w.runner().tools.CSI
	report := w.inspect()
	for range 32 + 5 {
		now.SinceBoot += 3 * time.Minute
		evidence.Observe(t.Context(), report, slog.New(slog.DiscardHandler))
	}
	if observations := w.driverObservations(); len(observations) != 32 {
		t.Errorf("%d observations", len(observations))
	}
}
