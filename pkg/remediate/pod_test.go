package remediate

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/inspect"
)

// wholePod is all that is done to the pod of a script when nothing is in the way.
var wholePod = []string{"sandbox s", "prepare process", "process 1", "process 2", "mount m", "cgroup c"}

func TestPodRelease(t *testing.T) {
	s := newScript(t)
	if pod := s.pod(); pod.Result != Released {
		t.Errorf("%s %s", pod.Result, pod.Why)
	}
	want := []string{
		"paused?", "paused?", // for the plan, and for that under the lock
		"begin", "paused?", "confirm",
		"intent sandbox s", "gone? " + uid1, "do sandbox s", "end sandbox s released",
		"paused?", "confirm",
		"intent process 1", "intent process 2", "gone? " + uid1, "prepare process",
		"gone? " + uid1, "do process 1", "end process 1 released", "gone? " + uid1, "do process 2",
		"end process 2 released",
		"paused?", "confirm",
		"intent mount m", "gone? " + uid1, "do mount m", "end mount m released",
		"paused?", "confirm",
		"intent cgroup c", "gone? " + uid1, "do cgroup c", "end cgroup c released",
		"paused?", "confirm",
		"finish released",
	}
	if diff := cmp.Diff(want, s.trace); diff != "" {
		t.Error(diff)
	}
}

// What ends the release of a pod, and how much of it is done by then.
func TestPodReleaseStops(t *testing.T) {
	type tests map[string]struct {
		set    func(s *script)
		result Result
		why    string
		done   []string
	}
	confirmWith := func(n int, change func(s *script, report *inspect.Report) error) func(*script) {
		return func(s *script) {
			s.confirm = func(_ context.Context, call int, report *inspect.Report) error {
				if call < n {
					return nil
				}
				s.stop()
				return change(s, report)
			}
		}
	}
	verdict := func(id string, v inspect.Verdict) func(*script, *inspect.Report) error {
		return func(_ *script, report *inspect.Report) error {
			for i := range report.Objects {
				if report.Objects[i].ID == id {
					report.Objects[i].Verdict, report.Objects[i].Why = v, "as the script says"
				}
			}
			return nil
		}
	}
	failed := func(what string) func(*script, *inspect.Report) error {
		return func(_ *script, report *inspect.Report) error {
			report.Errors = append(report.Errors, inspect.Failure{What: what, Error: "as the script says"})
			return nil
		}
	}
	unlist := func(ids ...string) func(*script, *inspect.Report) error {
		return func(_ *script, report *inspect.Report) error {
			report.Objects = slices.DeleteFunc(report.Objects, func(o inspect.Assessment) bool {
				return slices.Contains(ids, o.ID)
			})
			return nil
		}
	}
	closed := func(name string) func(*script, *inspect.Report) error {
		return func(_ *script, report *inspect.Report) error {
			report.Gates = []inspect.Gate{{Name: name, Why: "as the script says"}}
			return nil
		}
	}
	untied := func(_ *script, report *inspect.Report) error {
		for i := range report.Objects {
			if report.Objects[i].ID == "m" {
				report.Objects[i].Pod, report.Objects[i].Verdict = inspect.Pod{}, inspect.Unknown
			}
		}
		return nil
	}
	upToSandbox, upToProcesses := wholePod[:1], wholePod[:4]
	for name, test := range (tests{
		"a witness knows the pod": {confirmWith(1, verdict("c", inspect.Live)), Stopped,
			"cgroup c is live", nil},
		"a witness knows the pod in the middle": {confirmWith(2, verdict("c", inspect.Live)), Stopped,
			"cgroup c is live", upToSandbox},
		"an object cannot be judged": {confirmWith(1, verdict("c", inspect.Unknown)), CouldNotTell,
			"cgroup c is unknown", nil},
		"an object cannot be judged in the middle": {confirmWith(3, verdict("c", inspect.Unknown)), CouldNotTell,
			"cgroup c is unknown", upToProcesses},
		"a verdict that nobody knows": {confirmWith(1, verdict("c", "strange")), CouldNotTell,
			"cgroup c is strange", nil},
		"no verdict": {confirmWith(1, verdict("c", "")), CouldNotTell,
			"cgroup c is unknown", nil},
		"a gate is closed": {confirmWith(1, closed("g")), Stopped, "gate g is closed", nil},
		"a gate closes in the middle": {confirmWith(2, closed("g")), Stopped, "gate g is closed",
			upToSandbox},
		"a lister fails": {confirmWith(1, failed("mount")), CouldNotTell,
			"mount: as the script", nil},
		"a lister fails in the middle": {confirmWith(2, failed("mount")), CouldNotTell,
			"mount: as the script", upToSandbox},
		"a lister fails at the end": {confirmWith(5, failed("cgroup")), CouldNotTell,
			"cgroup: as the script", wholePod},
		"a witness fails at the end": {confirmWith(5, failed("apiserver")), CouldNotTell,
			"apiserver: as the script", wholePod},
		"owners of namespaces are not known at end": {confirmWith(5, failed("owners of network namespaces")),
			CouldNotTell, "owners of", wholePod},
		"the witnesses cannot be asked": {confirmWith(1, func(*script, *inspect.Report) error {
			return errScript
		}), CouldNotTell, "ask the witnesses again", nil},
		"nor in the middle": {confirmWith(2, func(*script, *inspect.Report) error {
			return errScript
		}), CouldNotTell, "ask the witnesses again", upToSandbox},
		"nor at the end": {confirmWith(5, func(*script, *inspect.Report) error {
			return errScript
		}), CouldNotTell, "ask the witnesses again", wholePod},
		"an object is not listed but there": {confirmWith(1, unlist("m")), CouldNotTell,
			"mount m still exists, but the inspection did not find it", nil},
		"one that was to be released next is not": {confirmWith(3, unlist("m")), CouldNotTell,
			"mount m still exists", upToProcesses},
		"all are not listed but there": {confirmWith(2, unlist("1", "2", "m", "c")), CouldNotTell,
			"process 1 still exists", upToSandbox},
		"an object has lost its tie": {confirmWith(2, untied), CouldNotTell,
			"mount m still exists, but it is no longer known to be the pod's: unknown", upToSandbox},
		"an object is foreign now": {confirmWith(2, verdict("m", inspect.Foreign)), CouldNotTell,
			"no longer known to be the pod's: foreign", upToSandbox},
		"whether it is gone cannot be told": {confirmWith(2, func(s *script, report *inspect.Report) error {
			s.gone["m"] = func(context.Context) (bool, error) { return false, errScript }
			return unlist("m")(s, report)
		}), CouldNotTell, "whether mount m is gone: as the script", upToSandbox},
		"an untied object of its sandbox": {func(s *script) {
			s.change("m", func(o *inspect.Assessment) { o.SandboxID = "s" })
			confirmWith(1, func(_ *script, report *inspect.Report) error {
				o := leftover(inspect.Netns, "", "/run/netns/x")
				o.Pod, o.SandboxID, o.Verdict, o.Why = inspect.Pod{}, "s", inspect.Unknown, "nothing tells"
				report.Objects = append(report.Objects, o)
				return nil
			})(s)
		}, CouldNotTell, "netns /run/netns/x is unknown", nil},
		"an object is another one now": {confirmWith(2, func(s *script, report *inspect.Report) error {
			s.change("m", func(o *inspect.Assessment) { o.Identity["id"] = "2" })
			*report = s.report()
			return nil
		}), Stopped, "mount m is no longer the object that was inspected", upToSandbox},
		"its namespace is opted out, as it turns out": {func(s *script) {
			s.settings.OptOut = []string{"secret"}
			confirmWith(2, func(s *script, report *inspect.Report) error {
				s.change("c", func(o *inspect.Assessment) { o.Pod.Namespace = "secret" })
				*report = s.report()
				return nil
			})(s)
		}, Stopped, "namespace secret is opted out", upToSandbox},

		"paused": {func(s *script) { s.pauseFrom(3, "paused for a reason", nil) }, Stopped, "paused for a reason", nil},
		"paused in the middle": {
			func(s *script) { s.pauseFrom(4, "paused for a reason", nil) }, Stopped, "paused for a reason", upToSandbox,
		},
		"whether it is paused cannot be told": {
			func(s *script) {
				s.pauseFrom(3, "", errScript)
			}, Stopped, "whether releases are paused is not known", nil,
		},
		"nor in the middle, whether it is paused": {
			func(s *script) {
				s.pauseFrom(5, "", errScript)
			}, Stopped, "whether releases are paused is not known", upToProcesses,
		},

		"the switch is made while the witnesses are asked": {confirmWith(1, func(s *script, _ *inspect.Report) error {
			s.makeSwitch()
			return nil
		}), Stopped, "kill switch", nil},
		"the switch is made by the last look before a step": {func(s *script) {
			s.switchAt(1)
		}, Stopped, "kill switch", nil},
		"the switch is made before SIGTERM": {func(s *script) {
			s.switchAt(2)
		}, Stopped, "kill switch", upToSandbox},
		"the switch is made between SIGTERM and SIGKILL": {func(s *script) {
			s.switchAt(3)
		}, Stopped, "kill switch", wholePod[:2]},
		"the switch is made between the steps of a kind": {func(s *script) {
			s.switchAt(4)
		}, Stopped, "kill switch", wholePod[:3]},
		"the switch is made between two kinds": {func(s *script) {
			s.switchAt(5)
		}, Stopped, "kill switch", upToProcesses},
		"the switch is made by a step and seen by the confirm": {func(s *script) {
			s.switchIn("s")
		}, Stopped, "kill switch", upToSandbox},

		"the pod is back before the first step": {func(s *script) {
			s.backAt(1)
		}, Stopped, "the pod is back", nil},
		"the pod is back before SIGTERM": {func(s *script) {
			s.backAt(2)
		}, Stopped, "the pod is back", upToSandbox},
		"the pod is back after SIGTERM": {func(s *script) {
			s.backAt(3)
		}, Stopped, "the pod is back", wholePod[:2]},
		"the pod is back between two processes": {func(s *script) {
			s.backAt(4)
		}, Stopped, "the pod is back", wholePod[:3]},
		"the pod is back before its volume is unmounted": {func(s *script) {
			s.backAt(5)
		}, Stopped, "the pod is back", upToProcesses},
		"the lock is taken away": {func(s *script) {
			s.unlockAt(1)
		}, Stopped, "another release may be running", nil},
		"the lock is taken away in the middle": {func(s *script) {
			s.unlockAt(5)
		}, Stopped, "another release may be running", upToProcesses},
		"an object turns out to be another one": {func(s *script) {
			s.failAt("s", mutate.ErrChanged)
		}, Stopped, mutate.ErrChanged.Error(), upToSandbox},
		"the second process turns out to be another one": {func(s *script) {
			s.failAt("2", mutate.ErrChanged)
		}, Stopped, mutate.ErrChanged.Error(), upToProcesses},
		"a process turns out to be another one (SIGTERM)": {func(s *script) {
			s.failPrepare(mutate.ErrChanged)
		}, Stopped, mutate.ErrChanged.Error(), wholePod[:2]},
		"SIGTERM fails": {func(s *script) { s.failPrepare(errScript) }, Stopped, "as the script says", wholePod[:2]},
	}) {
		t.Run(name, func(t *testing.T) {
			s := newScript(t)
			test.set(s)
			pod := s.pod()
			if pod.Result != test.result || !strings.Contains(pod.Why, test.why) {
				t.Errorf("%s: %s; want %s: %s", pod.Result, pod.Why, test.result, test.why)
			}
			if diff := cmp.Diff(test.done, s.done()); diff != "" {
				t.Errorf("done: %s\n%s", diff, s)
			}
			if s.count("STOP") == 0 {
				t.Error("the script never came to its stop")
			}
		})
	}
}

func (s *script) pauseFrom(n int, why string, err error) {
	s.paused = func(_ context.Context, call int) (string, error) {
		if call < n {
			return "", nil
		}
		s.stop()
		return why, err
	}
}

func (s *script) before(n int, what func() error) {
	s.stillGone = func(_ context.Context, call int) error {
		if call != n {
			return nil
		}
		s.stop()
		return what()
	}
}

func (s *script) switchAt(n int) { s.before(n, func() error { s.makeSwitch(); return nil }) }

func (s *script) backAt(n int) { s.before(n, func() error { return fmt.Errorf("the pod is back") }) }

func (s *script) unlockAt(n int) { s.before(n, func() error { return os.Remove(s.settings.Lock) }) }

func (s *script) switchIn(id string) {
	s.do[id] = func(context.Context) error {
		s.remove(id)
		s.makeSwitch()
		s.stop()
		return nil
	}
}

func (s *script) failAt(id string, err error) {
	s.do[id] = func(context.Context) error {
		s.stop()
		return fmt.Errorf("%s: %w", id, err)
	}
}

func (s *script) failPrepare(err error) {
	s.prepare = func(context.Context) error {
		s.stop()
		return fmt.Errorf("SIGTERM: %w", err)
	}
}

// goesAfter has an object go some time after its step.
func (s *script) goesAfter(id string, d time.Duration) {
	s.do[id] = func(context.Context) error {
		at := time.Now().Add(d)
		s.gone[id] = func(context.Context) (bool, error) {
			if time.Now().Before(at) {
				return false, nil
			}
			s.remove(id)
			return true, nil
		}
		return nil
	}
}

// What does not end a release, but is not released.
func TestPodReleaseLeaves(t *testing.T) {
	for name, test := range map[string]struct {
		set    func(s *script)
		result Result
		why    string
		steps  map[string]Result // of those that are not released
		done   []string
	}{
		"a candidate is not touched": {func(s *script) {
			s.confirm = func(_ context.Context, _ int, report *inspect.Report) error {
				if at := slices.IndexFunc(report.Objects, func(o inspect.Assessment) bool {
					return o.ID == "m"
				}); at >= 0 {
					report.Objects[at].Verdict, report.Objects[at].Why = inspect.Candidate, "not yet proven"
				}
				return nil
			}
		}, Incomplete, "mount m: is candidate now: not yet proven", map[string]Result{"m": Blocked},
			[]string{"sandbox s", "prepare process", "process 1", "process 2", "cgroup c"}},
		"what has to go first is there": {func(s *script) {
			s.needs = func(o inspect.Assessment, rest []inspect.Assessment) string {
				if _, here := findObject(rest, inspect.Mount, "m"); here && o.ID == "s" {
					return "the mount goes first"
				}
				return ""
			}
		}, Released, "", nil, []string{"prepare process", "process 1", "process 2", "mount m", "cgroup c",
			"sandbox s"}},
		"what has to go first stays": {func(s *script) {
			s.needs = func(o inspect.Assessment, rest []inspect.Assessment) string {
				if _, here := findObject(rest, inspect.Mount, "m"); here && o.ID == "c" {
					return "the mount goes first"
				}
				return ""
			}
			s.change("m", func(o *inspect.Assessment) { o.Facts = map[string]string{"refuse": "it is precious"} })
		}, Incomplete, "mount m: refused: it is precious", map[string]Result{"m": Refused, "c": Blocked},
			[]string{"sandbox s", "prepare process", "process 1", "process 2"}},
		"it is still there after the step": {func(s *script) {
			s.do["m"] = func(context.Context) error { return nil }
		}, Incomplete, "mount m: it still exists", map[string]Result{"m": Failed},
			append(slices.Clone(wholePod), "mount m")},
		"it goes while its effect is awaited": {func(s *script) {
			s.goesAfter("m", s.settings.VerifyWithin/2)
		}, Released, "", nil, wholePod},
		"it goes too late for the step, but the owner gets a minute": {func(s *script) {
			s.goesAfter("m", s.settings.VerifyWithin+s.settings.OwnerGrace/2)
		}, Released, "", map[string]Result{"m": Vanished}, wholePod},
		"it comes again after it was released": {func(s *script) {
			s.confirm = func(_ context.Context, n int, report *inspect.Report) error {
				if n == 5 {
					s.there = append(s.there, leftover(inspect.Mount, uid1, "m"))
					*report = s.report()
				}
				return nil
			}
		}, Incomplete, "mount m: it exists again", map[string]Result{"m": Failed}, wholePod},
		"something new appears after the plan": {func(s *script) {
			s.do["c"] = func(context.Context) error {
				s.remove("c")
				s.there = append(s.there, leftover(inspect.Cgroup, uid1, "new"))
				return nil
			}
		}, Incomplete, "cgroup new: appeared after the plan was made", map[string]Result{"new": NotActed}, wholePod},
		"something new that is not proven": {func(s *script) {
			s.do["c"] = func(context.Context) error {
				s.remove("c")
				o := leftover(inspect.Link, uid1, "veth1")
				o.Verdict = inspect.Candidate
				s.there = append(s.there, o)
				return nil
			}
		}, Incomplete, "link veth1: appeared", map[string]Result{"veth1": NotActed}, wholePod},
		"a process that only waits for its parent is nothing": {func(s *script) {
			s.do["1"] = func(context.Context) error {
				s.change("1", func(o *inspect.Assessment) { o.Facts = map[string]string{"state": "Z"} })
				return nil
			}
			s.gone["1"] = func(context.Context) (bool, error) { return true, nil }
		}, Released, "", nil, wholePod},
		"it was dead before": {func(s *script) {
			s.change("1", func(o *inspect.Assessment) { o.Facts = map[string]string{"state": "Z"} })
		}, Released, "", map[string]Result{"1": Vanished}, []string{"sandbox s", "prepare process", "process 2",
			"mount m", "cgroup c"}},
		"its owner took it away before anything was done": {func(s *script) {
			s.confirm = func(_ context.Context, n int, report *inspect.Report) error {
				if n == 1 {
					s.remove("m")
					*report = s.report()
				}
				return nil
			}
		}, Released, "", map[string]Result{"m": Vanished}, []string{"sandbox s", "prepare process", "process 1",
			"process 2", "cgroup c"}},
		"not all holders could be found": {func(s *script) {
			s.confirm = func(_ context.Context, _ int, report *inspect.Report) error {
				report.Errors = []inspect.Failure{{What: "holders", Error: "search cut short"}}
				return nil
			}
			s.needs = func(o inspect.Assessment, _ []inspect.Assessment) string {
				if len(o.Holders) != 1 || o.Holders[0].How != "search cut short" {
					return "the step does not know that there may be holders"
				}
				return ""
			}
		}, Released, "", nil, wholePod},
		"the network is not ready, which its own verdicts tell": {func(s *script) {
			s.confirm = func(_ context.Context, _ int, report *inspect.Report) error {
				report.Gates = []inspect.Gate{{Name: networkGate}}
				return nil
			}
		}, Released, "", nil, wholePod},
		"other pods' objects are no matter": {func(s *script) {
			s.confirm = func(_ context.Context, _ int, report *inspect.Report) error {
				other := leftover(inspect.Cgroup, uid2, "other")
				other.Verdict = inspect.Unknown
				untied := leftover(inspect.Netns, "", "untied")
				untied.Pod, untied.SandboxID, untied.Verdict = inspect.Pod{}, "another", inspect.Unknown
				report.Objects = append(report.Objects, other, untied)
				return nil
			}
		}, Released, "", nil, wholePod},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScript(t)
			test.set(s)
			pod := s.pod()
			if pod.Result != test.result || !strings.Contains(pod.Why, test.why) {
				t.Errorf("%s: %s; want %s: %s\n%s", pod.Result, pod.Why, test.result, test.why, s)
			}
			got := map[string]Result{}
			for _, step := range pod.Steps {
				if step.Result != Released {
					got[step.ID] = step.Result
				}
			}
			if len(test.steps)+len(got) > 0 {
				if diff := cmp.Diff(test.steps, got); diff != "" {
					t.Errorf("steps: %s", diff)
				}
			}
			if diff := cmp.Diff(test.done, s.done()); diff != "" {
				t.Errorf("done: %s\n%s", diff, s)
			}
		})
	}
}

// Each fault at each place. The invariants of a release hold, nobody hangs, and it is never called released.
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
			s.confirm = func(_ context.Context, n int, _ *inspect.Report) error {
				if n <= at {
					return nil
				}
				s.stop()
				return errScript
			}
		},
		"confirm hangs": func(_ *testing.T, s *script, at int) {
			s.confirm = func(ctx context.Context, n int, _ *inspect.Report) error {
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
		"last look fails": func(_ *testing.T, s *script, at int) { s.before(1+at, func() error { return errScript }) },
		"last look hangs": func(_ *testing.T, s *script, at int) {
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

// The agent ends while something hangs: everything ends, nothing more is done, and it may be tried again at once.
func TestPodReleaseInterruptedAnywhere(t *testing.T) {
	for name, set := range map[string]func(s *script){
		"in a step":  func(s *script) { s.do["m"] = s.hangs },
		"in SIGTERM": func(s *script) { s.prepare = s.hangs },
		"while confirming": func(s *script) {
			s.confirm = func(ctx context.Context, _ int, _ *inspect.Report) error { return s.hangs(ctx) }
		},
		"in the last look": func(s *script) {
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
			s.confirm = func(_ context.Context, n int, _ *inspect.Report) error {
				if n == 1 { // the sandbox is next; what comes after it is asked for in vain
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

// A journal that cannot be written ends everything: nothing is done that it does not tell of.
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

// A crash at any point: nothing is done after it, and the next release tells of it and comes to the same end.
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
