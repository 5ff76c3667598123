package repair

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/remediate/fleet"
	"github.com/nodeagent/nodeagent/pkg/remediate/release"
)

// Each guard prevents the step, the journal stays empty, and the reason is given.
func TestGuardsBeforeTheIntent(t *testing.T) {
	for name, test := range map[string]struct {
		prepare func(w *world)
		want    string
	}{
		"off":         {func(w *world) { w.settings.Actions["cure"] = release.DryRun }, "the mode of cure is dry-run"},
		"young":       {func(w *world) { w.believed.Raised = w.now() }, "waiting: the finding is 0s old; its owner has 2m0s to act first"},
		"refused":     {func(w *world) { w.refusal = "restart would end 3 containers" }, "restart would end 3 containers"},
		"kill switch": {func(w *world) { w.create("stop") }, "the kill switch /stop exists"},
		"paused": {func(w *world) {
			w.options = func(o *Options) { o.Paused = func(context.Context) (string, error) { return "for an upgrade", nil } }
		}, "for an upgrade"},
		"a pause that nobody knows of": {func(w *world) {
			w.options = func(o *Options) { o.Paused = func(context.Context) (string, error) { return "", errOutage } }
		}, "cannot tell whether repairs are paused"},
		"gone":     {func(w *world) { w.faulty = func() bool { return false } }, "the fault is gone"},
		"no check": {func(w *world) { w.blind = errOutage }, "cannot tell whether the fault is still there"},
		"window": {func(w *world) {
			at := w.now().Wall.Local()
			w.settings.Windows = []Window{{From: at.Add(time.Hour).Format("15:04"), To: at.Add(2 * time.Hour).Format("15:04")}}
		}, "outside of the maintenance windows"},
		"no fleet budget": {func(w *world) { w.settings.FleetBudget = Claims }, "refused: no fleet budget"},
		"no slot": {func(w *world) {
			w.settings.FleetBudget = Claims
			w.options = func(o *Options) { o.Slots = &slots{why: "waiting: 5 of 5 slots are taken"} }
		}, "waiting: 5 of 5 slots are taken"},
		"a release runs": {func(w *world) {
			lock, err := w.releases.LockNode(w.t.TempDir())
			if err != nil {
				w.t.Fatal(err)
			}
			w.t.Cleanup(func() { _ = lock.Unlock() })
		}, "another release is running"},
		"a repair runs": {func(w *world) {
			lock, err := mutate.Lock(filepath.Join(w.dir, "nodeagent-repair.lock"))
			if err != nil {
				w.t.Fatal(err)
			}
			w.t.Cleanup(func() { _ = lock.Unlock() })
		}, "busy"},
		"a journal that cannot be read": {func(w *world) {
			if err := os.MkdirAll(filepath.Join(w.dir, "state", journalName), 0o700); err != nil {
				w.t.Fatal(err)
			}
		}, "journal: "},
		// The older journal holds the budgets of the day, and the current one can still be written.
		"an older journal that cannot be read": {func(w *world) {
			if err := os.MkdirAll(filepath.Join(w.dir, "state", journalName+".1"), 0o700); err != nil {
				w.t.Fatal(err)
			}
		}, "journal: "},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				test.prepare(w)
				if why := w.round(t.Context()); !strings.Contains(why, test.want) {
					t.Errorf("%q, want %q", why, test.want)
				}
				if w.done > 0 {
					t.Error("it was done")
				}
				if !strings.HasSuffix(name, "journal that cannot be read") {
					w.expect(0, "")
				}
			})
		})
	}
}

// slots is a fleet budget with one slot.
type slots struct {
	why            string
	lost, released bool
	atMost         time.Duration
}

func (s *slots) Acquire(_ context.Context, _ string, atMost time.Duration) (fleet.Held, error) {
	if s.atMost = atMost; s.why != "" {
		return nil, errors.New(s.why)
	}
	return s, nil
}
func (s *slots) Valid() bool             { return !s.lost }
func (s *slots) Release(context.Context) { s.released = true }

// A change between intent and step stops the step. Its end is journaled, and it is not retried at once.
func TestGuardsAfterTheIntent(t *testing.T) {
	for name, test := range map[string]struct {
		change func(w *world, s *slots, cancel func())
		want   string
	}{
		"kill switch": {func(w *world, _ *slots, _ func()) { w.create("stop") }, "finish stopped: the kill switch /stop exists"},
		"slot lost":   {func(_ *world, s *slots, _ func()) { s.lost = true }, "finish stopped: the slot of the fleet's budget was lost"},
		"configuration removed": {func(_ *world, _ *slots, cancel func()) { cancel() },
			"finish stopped: the agent is stopping, or its configuration has changed"},
		"lock lost": {func(w *world, _ *slots, _ func()) {
			if err := os.Remove(filepath.Join(w.dir, "nodeagent-repair.lock")); err != nil {
				w.t.Error(err)
			}
		}, "finish stopped: another repair may be running"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				s := &slots{}
				w.settings.FleetBudget = Claims
				w.options = func(o *Options) {
					o.Slots = s
					o.faultPoint = func(point string) error {
						if strings.HasPrefix(point, "repair intent") {
							test.change(w, s, cancel)
						}
						return nil
					}
				}
				w.round(ctx)
				w.expect(0, test.want)
				if !s.released || s.atMost < w.settings.Hold {
					t.Errorf("slot %+v", s)
				}
				_ = os.Remove(filepath.Join(w.dir, "stop"))
				s.lost = false
				if why := w.round(t.Context()); !strings.Contains(why, "next try after 30m") || w.done > 0 {
					t.Errorf("%q", why)
				}
			})
		})
	}
}

// A configuration change during the verification ends the repair; the next configuration does not continue it.
func TestConfigurationRemovedWhileItIsHeld(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		w.does = func(context.Context) error { time.AfterFunc(time.Minute, cancel); return nil }
		w.round(ctx)
		w.expect(1, "finish interrupted")
		w.settings.Actions = nil
		w.faulty = func() bool { return true }
		r := w.runner()
		b := w.believed
		r.Update(finding.State{"kubelet-health": {Subjects: map[string]*finding.Believed{"s": &b}}}, nil)
		if r.round(t.Context()) || w.done != 1 || len(r.Status().Steps) > 0 {
			t.Errorf("done %d times, %+v", w.done, r.Status())
		}
	})
}
