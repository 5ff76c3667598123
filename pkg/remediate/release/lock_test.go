package release

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// Systemd removes the runtime directory of a service when the service ends, with the command line's lock in it.
func TestLockIsInNoRuntimeDirectory(t *testing.T) {
	unit, err := os.ReadFile("../../../systemd/nodeagent.service")
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for line := range strings.Lines(string(unit)) {
		name, ok := strings.CutPrefix(strings.TrimSpace(line), "RuntimeDirectory=")
		if !ok {
			continue
		}
		named++
		if dir := filepath.Join("/run", name); strings.HasPrefix(Defaults().Lock, dir+"/") {
			t.Errorf("%s is in %s", Defaults().Lock, dir)
		}
	}
	if named == 0 {
		t.Error("the unit has no runtime directory: what does this test prove?")
	}
	for _, lock := range []string{defaultLock, formerLock} {
		if got := (Settings{Lock: lock}).locks(); !slices.Contains(got, defaultLock) ||
			!slices.Contains(got, formerLock) {
			t.Errorf("%s: an agent of an earlier version may hold another: %q", lock, got)
		}
	}
	if got := (Settings{Lock: "/elsewhere"}).locks(); !slices.Equal(got, []string{"/elsewhere"}) {
		t.Errorf("got %q", got)
	}
}

// hold locks like another release.
func (s *script) hold(names ...string) *mutate.ReleaseLock {
	s.t.Helper()
	lock, err := mutate.Lock(names...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { lock.Unlock() })
	return lock
}

func TestReleaseBusy(t *testing.T) {
	s := newScript(t)
	state := s.host.Files.Path("state")
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, held := range map[string][]string{"the file": {s.settings.Lock}, "the journal's directory": {state}} {
		lock := s.hold(held...)
		s.stop()
		outcome, err := s.release()
		if err != nil || !outcome.Busy || outcome.Acted() || !strings.Contains(outcome.Stopped,
			"another release is running") {
			t.Errorf("%s: %v: %s", name, err, describe(outcome))
		}
		lock.Unlock()
		s.trace = nil
	}
	if pod := s.pod(); pod.Result != Released {
		t.Errorf("%s: %s", pod.Result, pod.Why)
	}
}

// If the lock file is removed and made again, as systemd and the next agent do, there is still no second release.
func TestReleaseBusyAlthoughTheFileIsNew(t *testing.T) {
	s := newScript(t)
	second := newScript(t)
	second.host.Files.Root, second.settings = s.host.Files.Root, s.settings
	s.do["s"] = func(ctx context.Context) error {
		if err := os.Remove(s.settings.Lock); err != nil {
			return err
		}
		outcome, err := second.runner().Release(ctx, second.report())
		if err != nil || !outcome.Busy {
			t.Errorf("a second release: %v: %s", err, describe(outcome))
		}
		s.remove("s")
		s.stop()
		return nil
	}
	if pod := s.pod(); pod.Result != Stopped || !strings.Contains(pod.Why, "another release may be running") {
		t.Errorf("%s: %s", pod.Result, pod.Why)
	}
}

// A second release waits, and onWait is called once with the holder.
func TestReleaseWaits(t *testing.T) {
	for name, test := range map[string]struct {
		ends time.Duration // of the other release
		busy bool
	}{
		"the other one ends":      {10 * time.Second, false},
		"the other one goes on":   {time.Hour, true},
		"the other one ends late": {31 * time.Second, true},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScript(t)
			lock := s.hold(s.settings.Lock)
			var reported []string
			var outcome Outcome
			var err error
			var took time.Duration
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				time.AfterFunc(test.ends, func() { lock.Unlock() })
				patient := s.runner().Manual(Manual{LockWait: 30 * time.Second,
					OnWait: func(why string) { reported = append(reported, why) }})
				outcome, err = patient.Release(t.Context(), s.report())
				took = time.Since(begin)
			})
			s.invariants(outcome, err)
			if err != nil || outcome.Busy != test.busy || test.busy && took > 35*time.Second {
				t.Errorf("after %s: %v: %s", took, err, describe(outcome))
			}
			if len(reported) != 1 || !strings.Contains(reported[0], "another release is running, by process") {
				t.Errorf("reported %q", reported)
			}
			if outcome.Acted() == test.busy {
				t.Error(describe(outcome))
			}
		})
	}
}

// A pass without work does not take the lock, and its holder does not keep the pass from reporting so.
func TestReleaseOfNothingTakesNoLock(t *testing.T) {
	for name, set := range map[string]func(s *script){
		"nothing is left over": func(s *script) { s.there = nil },
		"dry run":              func(s *script) { s.settings.Mode = DryRun },
		"kill switch":          func(s *script) { s.makeSwitch() },
		"candidates only": func(s *script) {
			s.change("s", func(o *object.Assessment) { o.Verdict = object.Candidate })
			s.there = s.there[:1]
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScript(t)
			set(s)
			s.stop()
			if outcome, err := s.release(); err != nil || outcome.Busy {
				t.Errorf("%v: %s", err, describe(outcome))
			}
			if _, err := os.Lstat(s.settings.Lock); err == nil {
				t.Error("it was locked")
			}
		})
	}
}

// Changes by another release, made while this one waited for the lock, count.
func TestReleasePlansUnderTheLock(t *testing.T) {
	s := newScript(t)
	s.settings.PodsPerHour = 1
	lock := s.hold(s.settings.Lock)
	s.stop()
	synctest.Test(t, func(t *testing.T) {
		patient := s.runner().Manual(Manual{LockWait: time.Minute, OnWait: func(string) {
			write(t, open(t, s.host.Files.Path("state")), Record{At: now, Event: Begin, Group: uid2},
				Record{At: now, Event: Finish, Group: uid2})
			lock.Unlock()
		}})
		outcome, err := patient.Release(t.Context(), s.report())
		if err != nil || outcome.Acted() || !strings.Contains(describe(outcome), "budget") {
			t.Errorf("%v: %s", err, describe(outcome))
		}
	})
	s.invariants(Outcome{}, nil)
}
