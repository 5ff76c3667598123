package release

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// Events that end the release of a pod, and how much of it is done by then.
func TestPodReleaseStops(t *testing.T) {
	type tests map[string]struct {
		set    func(s *script)
		result Result
		why    string
		done   []string
	}
	confirmWith := func(n int, change func(s *script, report *object.Report) error) func(*script) {
		return func(s *script) {
			s.confirm = func(_ context.Context, call int, report *object.Report) error {
				if call < n {
					return nil
				}
				s.stop()
				return change(s, report)
			}
		}
	}
	verdict := func(id string, v object.Verdict) func(*script, *object.Report) error {
		return func(_ *script, report *object.Report) error {
			for i := range report.Objects {
				if report.Objects[i].ID == id {
					report.Objects[i].Verdict, report.Objects[i].Why = v, "as the script says"
				}
			}
			return nil
		}
	}
	failed := func(what string) func(*script, *object.Report) error {
		return func(_ *script, report *object.Report) error {
			report.Errors = append(report.Errors, object.Failure{What: what, Error: "as the script says"})
			return nil
		}
	}
	unlist := func(ids ...string) func(*script, *object.Report) error {
		return func(_ *script, report *object.Report) error {
			report.Objects = slices.DeleteFunc(report.Objects, func(o object.Assessment) bool {
				return slices.Contains(ids, o.ID)
			})
			return nil
		}
	}
	closed := func(name string) func(*script, *object.Report) error {
		return func(_ *script, report *object.Report) error {
			report.Gates = []object.Gate{{Name: name, Why: "as the script says"}}
			return nil
		}
	}
	untied := func(_ *script, report *object.Report) error {
		for i := range report.Objects {
			if report.Objects[i].ID == "m" {
				report.Objects[i].Pod, report.Objects[i].Verdict = object.Pod{}, object.Unknown
			}
		}
		return nil
	}
	upToSandbox, upToProcesses := wholePod[:1], wholePod[:4]
	for name, test := range (tests{
		"a witness knows the pod": {confirmWith(1, verdict("c", object.Live)), Stopped,
			"cgroup c is live", nil},
		"a witness knows the pod in the middle": {confirmWith(2, verdict("c", object.Live)), Stopped,
			"cgroup c is live", upToSandbox},
		"an object cannot be evaluated": {confirmWith(1, verdict("c", object.Unknown)), CouldNotTell,
			"cgroup c is unknown", nil},
		"an object cannot be evaluated in the middle": {confirmWith(3, verdict("c", object.Unknown)), CouldNotTell,
			"cgroup c is unknown", upToProcesses},
		"a verdict that nobody knows": {confirmWith(1, verdict("c", "strange")), CouldNotTell,
			"cgroup c is strange", nil},
		"no verdict": {confirmWith(1, verdict("c", "")), CouldNotTell,
			"cgroup c is unknown", nil},
		"a gate is closed":  {confirmWith(1, closed("g")), Stopped, "gate g is closed", nil},
		"many are orphaned": {confirmWith(1, closed(object.Breaker)), Stopped, "gate no-mass-orphaning is closed", nil},
		"many are orphaned in the middle": {confirmWith(3, closed(object.Breaker)), Stopped,
			"gate no-mass-orphaning is closed", upToProcesses},
		"many are orphaned, and the stronger proof is not of all": {confirmWith(1, func(s *script,
			report *object.Report) error {
			for i := range report.Objects {
				report.Objects[i].PassesBreaker = report.Objects[i].ID != "m"
			}
			return closed(object.Breaker)(s, report)
		}), Stopped, "gate no-mass-orphaning is closed", nil},
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
		"the witnesses cannot be asked": {confirmWith(1, func(*script, *object.Report) error {
			return errScript
		}), CouldNotTell, "ask the witnesses again", nil},
		"nor in the middle": {confirmWith(2, func(*script, *object.Report) error {
			return errScript
		}), CouldNotTell, "ask the witnesses again", upToSandbox},
		"nor at the end": {confirmWith(5, func(*script, *object.Report) error {
			return errScript
		}), CouldNotTell, "ask the witnesses again", wholePod},
		"an object is not listed but there": {confirmWith(1, unlist("m")), CouldNotTell,
			"mount m still exists, but the inspection did not find it", nil},
		"one that was to be released next is not": {confirmWith(3, unlist("m")), CouldNotTell,
			"mount m still exists", upToProcesses},
		"all are not listed but there": {confirmWith(2, unlist("1", "2", "m", "c")), CouldNotTell,
			"process 1 still exists", upToSandbox},
		"an object is no longer attributed to the pod": {confirmWith(2, untied), CouldNotTell,
			"mount m still exists, but it is no longer known to be the pod's: unknown", upToSandbox},
		"an object is foreign now": {confirmWith(2, verdict("m", object.Foreign)), CouldNotTell,
			"no longer known to be the pod's: foreign", upToSandbox},
		"whether it is gone is undecidable": {confirmWith(2, func(s *script, report *object.Report) error {
			s.gone["m"] = func(context.Context) (bool, error) { return false, errScript }
			return unlist("m")(s, report)
		}), CouldNotTell, "whether mount m is gone: as the script", upToSandbox},
		"an untied object of its sandbox": {func(s *script) {
			s.change("m", func(o *object.Assessment) { o.SandboxID = "s" })
			confirmWith(1, func(_ *script, report *object.Report) error {
				o := leftover(object.Netns, "", "/run/netns/x")
				o.Pod, o.SandboxID, o.Verdict, o.Why = object.Pod{}, "s", object.Unknown, "owner unknown"
				report.Objects = append(report.Objects, o)
				return nil
			})(s)
		}, CouldNotTell, "netns /run/netns/x is unknown", nil},
		"an object is another one now": {confirmWith(2, func(s *script, report *object.Report) error {
			s.change("m", func(o *object.Assessment) { o.Identity.Runtime.ID = "2" })
			*report = s.report()
			return nil
		}), Stopped, "mount m is no longer the object that was inspected", upToSandbox},
		"its namespace is opted out, as it turns out": {func(s *script) {
			s.settings.OptOut = []string{"secret"}
			confirmWith(2, func(s *script, report *object.Report) error {
				s.change("c", func(o *object.Assessment) { o.Pod.Namespace = "secret" })
				*report = s.report()
				return nil
			})(s)
		}, Stopped, "namespace secret is opted out", upToSandbox},

		"paused": {func(s *script) { s.pauseFrom(3, "paused for a reason", nil) }, Stopped, "paused for a reason", nil},
		"paused in the middle": {
			func(s *script) { s.pauseFrom(4, "paused for a reason", nil) }, Stopped, "paused for a reason", upToSandbox,
		},
		"whether it is paused is undecidable": {
			func(s *script) {
				s.pauseFrom(3, "", errScript)
			}, CouldNotTell, "whether releases are paused is not known", nil,
		},
		"nor in the middle, whether it is paused": {
			func(s *script) {
				s.pauseFrom(5, "", errScript)
			}, CouldNotTell, "whether releases are paused is not known", upToProcesses,
		},

		"the switch is made while the witnesses are asked": {confirmWith(1, func(s *script, _ *object.Report) error {
			s.makeSwitch()
			return nil
		}), Stopped, "kill switch", nil},
		"the switch is set during the last check before a step": {func(s *script) {
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
