package release

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// Each fault at each point. The invariants of a release hold, no call hangs, and the result is never "released".
func TestPodReleaseFaults(t *testing.T) {
	ids := []string{"s", "1", "2", "m", "c"}
	gone := func(t *testing.T, s *script, id string, answer func(context.Context) (bool, error)) {
		do := s.do[id]
		s.do[id] = func(ctx context.Context) error {
			s.gone[id] = answer
			if do != nil {
				return do(ctx)
			}
			s.remove(id)
			return nil
		}
	}
	for name, fault := range map[string]func(t *testing.T, s *script, at int){
		"error": func(_ *testing.T, s *script, at int) {
			s.do[ids[at]] = func(context.Context) error { return errScript }
		},
		"busy": func(_ *testing.T, s *script, at int) {
			s.do[ids[at]] = func(context.Context) error { return mutate.ErrBusy }
		},
		"refused": func(_ *testing.T, s *script, at int) {
			s.do[ids[at]] = func(context.Context) error { return mutate.Refusal{Why: "no"} }
		},
		"changed": func(_ *testing.T, s *script, at int) { s.failAt(ids[at], mutate.ErrChanged) },
		"hangs":   func(_ *testing.T, s *script, at int) { s.do[ids[at]] = hang },
		"nobody can say whether it is gone": func(t *testing.T, s *script, at int) {
			gone(t, s, ids[at], func(context.Context) (bool, error) { return false, errScript })
		},
		"whether it is gone hangs": func(t *testing.T, s *script, at int) {
			gone(t, s, ids[at], func(ctx context.Context) (bool, error) { return false, hang(ctx) })
		},
		"not gone": func(t *testing.T, s *script, at int) {
			gone(t, s, ids[at], func(context.Context) (bool, error) { return false, nil })
		},
		"confirm fails": func(_ *testing.T, s *script, at int) {
			s.confirm = func(_ context.Context, n int, _ *object.Report) error {
				if n <= at {
					return nil
				}
				s.stop()
				return errScript
			}
		},
		"confirm hangs": func(_ *testing.T, s *script, at int) {
			s.confirm = func(ctx context.Context, n int, _ *object.Report) error {
				if n <= at {
					return nil
				}
				s.stop()
				return hang(ctx)
			}
		},
		"pause hangs": func(_ *testing.T, s *script, at int) {
			s.paused = func(ctx context.Context, n int) (string, error) {
				if n <= 2+at {
					return "", nil
				}
				s.stop()
				return "", hang(ctx)
			}
		},
		"last check fails": func(_ *testing.T, s *script, at int) { s.before(1+at, func() error { return errScript }) },
		"last check hangs": func(_ *testing.T, s *script, at int) {
			s.stillGone = func(ctx context.Context, n int) error {
				if n <= at {
					return nil
				}
				s.stop()
				return hang(ctx)
			}
		},
	} {
		for at := range ids {
			t.Run(fmt.Sprintf("%s at %d", name, at), func(t *testing.T) {
				s := newScript(t)
				fault(t, s, at)
				if pod := s.pod(); pod.Result == Released || pod.Result == Interrupted || pod.Why == "" {
					t.Errorf("%s: %s\n%s", pod.Result, pod.Why, s)
				}
			})
		}
	}
}

// The agent ends while a call hangs: all calls end, no further change is made, and the release may be retried at once.
func TestPodReleaseInterruptedAnywhere(t *testing.T) {
	for name, set := range map[string]func(s *script){
		"in a step":  func(s *script) { s.do["m"] = s.hangs },
		"in SIGTERM": func(s *script) { s.prepare = s.hangs },
		"while confirming": func(s *script) {
			s.confirm = func(ctx context.Context, _ int, _ *object.Report) error { return s.hangs(ctx) }
		},
		"in the last check": func(s *script) {
			s.stillGone = func(ctx context.Context, _ int) error { return s.hangs(ctx) }
		},
		"while it is paused": func(s *script) { s.pauseHangs() },
		"while it is verified": func(s *script) {
			s.do["m"] = func(context.Context) error {
				s.gone["m"] = func(ctx context.Context) (bool, error) { return false, s.hangs(ctx) }
				return nil
			}
		},
		"while the owner finishes": func(s *script) {
			s.confirm = func(_ context.Context, n int, _ *object.Report) error {
				if n == 1 { // the sandbox is next; later steps are requested in vain
					s.gone["c"] = func(ctx context.Context) (bool, error) { return false, s.hangs(ctx) }
				}
				return nil
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScript(t)
			set(s)
			var outcome Outcome
			var err error
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				s.cancel = cancel
				outcome, err = s.runner().Release(ctx, s.report())
			})
			s.invariants(outcome, err)
			if err != nil || outcome.Pods[0].Result != Interrupted || s.count("STOP") == 0 {
				t.Errorf("%v: %s\n%s", err, describe(outcome), s)
			}
			records, _, _ := ReadJournal(s.host.Files.Path("state"))
			if attempts(records)[uid1].Finished {
				t.Error("it is not tried again at once")
			}
		})
	}
}

func (s *script) hangs(ctx context.Context) error {
	s.stop()
	s.cancel()
	return hang(ctx)
}

func (s *script) pauseHangs() {
	s.paused = func(ctx context.Context, n int) (string, error) {
		if n <= 2 {
			return "", nil
		}
		return "", s.hangs(ctx)
	}
}

// A journal write error ends the release: no change is made without a record.
func TestPodReleaseJournalFails(t *testing.T) {
	for at := range 11 { // begin, intents and ends, finish
		t.Run(fmt.Sprint(at), func(t *testing.T) {
			s := newScript(t)
			n := 0
			s.write = func(Record) error {
				if n++; n != at+1 {
					return nil
				}
				s.stop()
				return errScript
			}
			if outcome, err := s.release(); err == nil {
				t.Errorf("no error: %s\n%s", describe(outcome), s)
			}
		})
	}
}

// After a crash at any point no change follows; the next release reports the crash and has the same result.
func TestPodReleaseCrashes(t *testing.T) {
	for at, crashed := 1, true; crashed; at++ {
		s := newScript(t)
		n := 0
		crashed = false
		s.faultPoint = func(string) error {
			if n++; n == at {
				crashed = true
				s.stop()
				return errScript
			}
			return nil
		}
		if _, err := s.release(); crashed != (err != nil) {
			t.Fatalf("at %d: crashed %v, %v", at, crashed, err)
		}
		if !crashed {
			if at < 10 {
				t.Errorf("only %d points", at)
			}
			return
		}
		s.faultPoint, s.trace = nil, nil
		left := len(s.there)
		outcome, err := s.release()
		if err != nil || len(outcome.CutOff) == 0 && left > 0 || len(s.there) > 0 {
			t.Errorf("at %d: %v: %s\n%s", at, err, describe(outcome), s)
		}
	}
}
