package release

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// wholePod lists the changes to the pod of a script if no fault is injected.
var wholePod = []string{"sandbox s", "prepare process", "process 1", "process 2", "mount m", "cgroup c"}

func TestPodRelease(t *testing.T) {
	s := newScript(t)
	if pod := s.pod(); pod.Result != Released {
		t.Errorf("%s %s", pod.Result, pod.Why)
	}
	want := []string{
		"paused?", "paused?", // for the plan, and again under the lock
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

// goesAfter makes an object disappear some time after its step.
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

// Events that do not end a release but keep an object.
func TestPodReleaseLeaves(t *testing.T) {
	for name, test := range map[string]struct {
		set    func(s *script)
		result Result
		why    string
		steps  map[string]Result // of the objects not released
		done   []string
	}{
		"a candidate is not touched": {func(s *script) {
			s.confirm = func(_ context.Context, _ int, report *object.Report) error {
				if at := slices.IndexFunc(report.Objects, func(o object.Assessment) bool {
					return o.ID == "m"
				}); at >= 0 {
					report.Objects[at].Verdict, report.Objects[at].Why = object.Candidate, "not yet proven"
				}
				return nil
			}
		}, Incomplete, "mount m: is candidate now: not yet proven", map[string]Result{"m": Blocked},
			[]string{"sandbox s", "prepare process", "process 1", "process 2", "cgroup c"}},
		"what has to go first is there": {func(s *script) {
			s.needs = func(o object.Assessment, rest []object.Assessment) string {
				if _, here := object.Find(rest, object.Mount, "m"); here && o.ID == "s" {
					return "the mount goes first"
				}
				return ""
			}
		}, Released, "", nil, []string{"prepare process", "process 1", "process 2", "mount m", "cgroup c",
			"sandbox s"}},
		"what has to go first stays": {func(s *script) {
			s.needs = func(o object.Assessment, rest []object.Assessment) string {
				if _, here := object.Find(rest, object.Mount, "m"); here && o.ID == "c" {
					return "the mount goes first"
				}
				return ""
			}
			s.change("m", func(o *object.Assessment) { o.Facts = map[string]string{"refuse": "it is precious"} })
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
			s.confirm = func(_ context.Context, n int, report *object.Report) error {
				if n == 5 {
					s.there = append(s.there, leftover(object.Mount, uid1, "m"))
					*report = s.report()
				}
				return nil
			}
		}, Incomplete, "mount m: it exists again", map[string]Result{"m": Failed}, wholePod},
		"something new appears after the plan": {func(s *script) {
			s.do["c"] = func(context.Context) error {
				s.remove("c")
				s.there = append(s.there, leftover(object.Cgroup, uid1, "new"))
				return nil
			}
		}, Incomplete, "cgroup new: appeared after the plan was made", map[string]Result{"new": NotActed}, wholePod},
		"something new that is not proven": {func(s *script) {
			s.do["c"] = func(context.Context) error {
				s.remove("c")
				o := leftover(object.Link, uid1, "veth1")
				o.Verdict = object.Candidate
				s.there = append(s.there, o)
				return nil
			}
		}, Incomplete, "link veth1: appeared", map[string]Result{"veth1": NotActed}, wholePod},
		"a process that only waits for its parent is nothing": {func(s *script) {
			s.do["1"] = func(context.Context) error {
				s.change("1", func(o *object.Assessment) { o.Facts = map[string]string{"state": "Z"} })
				return nil
			}
			s.gone["1"] = func(context.Context) (bool, error) { return true, nil }
		}, Released, "", nil, wholePod},
		"a process whose main thread alone has ended is something": {func(s *script) {
			s.do["1"] = func(context.Context) error {
				s.change("1", func(o *object.Assessment) { o.Facts = map[string]string{"state": "Z", "threads": "2"} })
				return nil
			}
			s.gone["1"] = func(context.Context) (bool, error) { return true, nil }
		}, Incomplete, "process 1", map[string]Result{"1": Failed}, wholePod},
		"it was dead before": {func(s *script) {
			s.change("1", func(o *object.Assessment) { o.Facts = map[string]string{"state": "Z"} })
		}, Released, "", map[string]Result{"1": Vanished}, []string{"sandbox s", "prepare process", "process 2",
			"mount m", "cgroup c"}},
		"its owner took it away before anything was done": {func(s *script) {
			s.confirm = func(_ context.Context, n int, report *object.Report) error {
				if n == 1 {
					s.remove("m")
					*report = s.report()
				}
				return nil
			}
		}, Released, "", map[string]Result{"m": Vanished}, []string{"sandbox s", "prepare process", "process 1",
			"process 2", "cgroup c"}},
		"not all holders could be found": {func(s *script) {
			s.confirm = func(_ context.Context, _ int, report *object.Report) error {
				report.Errors = []object.Failure{{What: "holders", Error: "search cut short"}}
				return nil
			}
			s.needs = func(o object.Assessment, _ []object.Assessment) string {
				if len(o.Holders) != 1 || o.Holders[0].How != "search cut short" {
					return "the step does not know that there may be holders"
				}
				return ""
			}
		}, Released, "", nil, wholePod},
		"the network is not ready, which its own verdicts show": {func(s *script) {
			s.confirm = func(_ context.Context, _ int, report *object.Report) error {
				report.Gates = []object.Gate{{Name: networkGate}}
				return nil
			}
		}, Released, "", nil, wholePod},
		"many are orphaned, and the stronger proof is of this pod": {func(s *script) {
			s.confirm = func(_ context.Context, _ int, report *object.Report) error {
				for i := range report.Objects {
					report.Objects[i].PassesBreaker = true
				}
				report.Gates = []object.Gate{{Name: object.Breaker}}
				return nil
			}
		}, Released, "", nil, wholePod},
		"other pods' objects are no matter": {func(s *script) {
			s.confirm = func(_ context.Context, _ int, report *object.Report) error {
				other := leftover(object.Cgroup, uid2, "other")
				other.Verdict = object.Unknown
				untied := leftover(object.Netns, "", "untied")
				untied.Pod, untied.SandboxID, untied.Verdict = object.Pod{}, "another", object.Unknown
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
