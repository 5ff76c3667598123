package repair

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/remediate/fleet"
)

// A repair held for an hour by a gate that others closed is a finding, with the reason and who opens the gate.
func TestHeldForAnHourIsAFinding(t *testing.T) {
	budget := func(err error) func(*world) {
		return func(w *world) {
			w.settings.FleetBudget = Claims
			w.options = func(o *Options) {
				if o.Slots = nil; err != nil {
					o.Slots = refusing{err}
				}
			}
		}
	}
	paused := func(why string, err error) func(*world) {
		return func(w *world) {
			w.options = func(o *Options) { o.Paused = func(context.Context) (string, error) { return why, err } }
		}
	}
	for name, test := range map[string]struct {
		close       func(*world)
		why, opener string
	}{
		"kill switch":          {func(w *world) { w.create("stop") }, "the kill switch /stop exists", "an administrator removes that file"},
		"paused":               {paused("for an upgrade", nil), "for an upgrade", "the annotation is removed"},
		"a pause not known of": {paused("", errOutage), "cannot tell whether repairs are paused", "by itself"},
		"no budget":            {budget(nil), "no fleet budget", "an administrator grants the right"},
		"no right to a slot":   {budget(fleet.ErrIdentity), "may not hold a slot", "an administrator grants the right"},
		"fleet paused":         {budget(fleet.ErrPaused), "the fleet is paused", "an administrator deletes that ConfigMap"},
		"storm":                {budget(fleet.ErrStorm), "too many nodes wait", "once fewer nodes wait"},
		"no slot free":         {budget(fleet.ErrWaiting), "all slots are held", "another node gives its slot back"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				test.close(w)
				r, b := w.runner(), w.believed
				r.Update(finding.State{"kubelet-health": {Subjects: map[string]*finding.Believed{"s": &b}}}, nil)
				r.round(t.Context())
				time.Sleep(time.Hour - time.Second)
				r.round(t.Context())
				if found := r.Findings(); len(found) > 0 {
					t.Fatalf("too early: %+v", found)
				}
				time.Sleep(time.Second)
				r.round(t.Context())
				found := r.Findings()
				if len(found) != 1 || found[0].Reason != reasonHeld || found[0].SuggestedAction != finding.SuggestHuman ||
					!strings.Contains(found[0].Message, test.why) || !strings.Contains(found[0].Message, ". It begins ") ||
					!strings.Contains(found[0].Message, test.opener) {
					t.Errorf("%+v", found)
				}
				r.Update(finding.State{}, nil)
				r.round(t.Context())
				if found := r.Findings(); len(found) > 0 {
					t.Errorf("the fault is gone: %+v", found)
				}
			})
		})
	}
}

// A gate that opens meanwhile, and one that the repair itself asks for, are none.
func TestOpenedWithinTheHour(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.create("stop")
		w.refusal = "restart would end 3 containers"
		r, b := w.runner(), w.believed
		r.Update(finding.State{"kubelet-health": {Subjects: map[string]*finding.Believed{"s": &b}}}, nil)
		r.round(t.Context())
		time.Sleep(50 * time.Minute)
		if err := os.Remove(filepath.Join(w.dir, "stop")); err != nil {
			t.Fatal(err)
		}
		r.round(t.Context())
		w.create("stop")
		r.round(t.Context())
		time.Sleep(50 * time.Minute)
		r.round(t.Context())
		if found := r.Findings(); len(found) > 0 {
			t.Errorf("%+v", found)
		}
	})
}

// refusing is a fleet budget that gives no slot.
type refusing struct{ err error }

func (r refusing) Acquire(context.Context, string, time.Duration) (fleet.Held, error) {
	return nil, fmt.Errorf("slot for cure: %w", r.err)
}
