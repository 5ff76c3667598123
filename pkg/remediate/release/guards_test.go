package release

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/nodeagent/nodeagent/internal/setting"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

func TestOptOut(t *testing.T) {
	of := func(kind object.Kind, id, namespace string, verdict object.Verdict) object.Assessment {
		o := leftover(kind, uid1, id)
		o.Pod.Namespace, o.Verdict = namespace, verdict
		return o
	}
	for name, test := range map[string]struct {
		optOut  []string
		objects []object.Assessment
		want    string
	}{
		"nothing is opted out": {nil, []object.Assessment{of(object.Cgroup, "c", "", object.Leftover)},
			""},
		"another one": {[]string{"kube-system"},
			[]object.Assessment{of(object.Cgroup, "c", "ns", object.Leftover)}, ""},
		"this one": {[]string{"a", "ns"},
			[]object.Assessment{of(object.Cgroup, "c", "ns", object.Leftover)}, "namespace ns is opted out"},
		"not known, as no sandbox is": {[]string{"kube-system"},
			[]object.Assessment{of(object.Cgroup, "c", "", object.Leftover)}, "namespace is not known"},
		"known of a part only": {[]string{"kube-system"},
			[]object.Assessment{of(object.Sandbox, "s", "ns", object.Leftover),
				of(object.Cgroup, "c", "", object.Leftover)}, "not known"},
		"a part is in it": {[]string{"kube-system"},
			[]object.Assessment{of(object.Sandbox, "s", "kube-system", object.Leftover),
				of(object.Cgroup, "c", "ns", object.Leftover)}, "kube-system is opted out"},
		"a part that is not proven is": {[]string{"kube-system"},
			[]object.Assessment{of(object.Sandbox, "s", "kube-system", object.Candidate),
				of(object.Cgroup, "c", "ns", object.Leftover)}, "kube-system is opted out"},
		"one that is not proven, of an unknown namespace": {
			[]string{"kube-system"}, []object.Assessment{of(object.Sandbox, "s", "", object.Candidate),
				of(object.Cgroup, "c", "ns", object.Leftover)}, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			policy := on()
			policy.OptOut = test.optOut
			for _, step := range Plan(object.Report{Objects: test.objects}, policy, now) {
				if step.Acts() != (test.want == "") || !strings.Contains(step.Blocked, test.want) {
					t.Errorf("%s %s: %q, want %q", step.Kind, step.ID, step.Blocked, test.want)
				}
			}
		})
	}
}

// An opted-out pod is kept as a whole, even if only one object knows; with a selector, so is a pod of unknown labels.
// The opt-out is checked again before each step.
func TestPodOptOut(t *testing.T) {
	of := func(id, optOut string, known bool, verdict object.Verdict) object.Assessment {
		o := leftover(object.Cgroup, uid1, id)
		o.OptOut, o.LabelsKnown, o.Verdict = optOut, known, verdict
		return o
	}
	for name, test := range map[string]struct {
		selectors []string
		objects   []object.Assessment
		want      string
	}{
		"not opted out":                  {nil, []object.Assessment{of("a", "", true, object.Leftover)}, ""},
		"nothing is known, no selectors": {nil, []object.Assessment{of("a", "", false, object.Leftover)}, ""},
		"opted out": {nil, []object.Assessment{of("a", "its annotation", true, object.Leftover)},
			"its annotation"},
		"a part that is not proven": {nil, []object.Assessment{of("a", "its annotation", true, object.Candidate),
			of("b", "", false, object.Leftover)}, "its annotation"},
		"known, other labels": {[]string{"app=db"}, []object.Assessment{of("a", "", true, object.Leftover)}, ""},
		"not known": {[]string{"app=db"}, []object.Assessment{of("a", "", false, object.Leftover)},
			"labels of its pod are not known"},
	} {
		t.Run(name, func(t *testing.T) {
			policy := on()
			policy.OptOutPods = test.selectors
			for _, step := range Plan(object.Report{Objects: test.objects}, policy, now) {
				if step.Acts() != (test.want == "") || !strings.Contains(step.Blocked, test.want) {
					t.Errorf("%s: %q, want %q", step.ID, step.Blocked, test.want)
				}
			}
		})
	}
	t.Run("before a step", func(t *testing.T) {
		s := newScript(t)
		s.confirm = func(_ context.Context, n int, report *object.Report) error {
			if n == 2 { // after the first kind
				s.stop()
				report.Objects[0].OptOut = "its annotation"
			}
			return nil
		}
		if pod := s.pod(); pod.Result != Stopped || !strings.Contains(pod.Why, "its annotation") {
			t.Errorf("%s: %s\n%s", pod.Result, pod.Why, s)
		}
	})
	t.Run("settings", func(t *testing.T) {
		s := Defaults()
		s.OptOutPods = []string{"app=db", "app in (", ""}
		got, _ := errors.AsType[setting.Mistakes](s.Validate())
		if len(got) != 2 || got["optOutPods.1"] == "" || got["optOutPods.2"] == "" {
			t.Error(got)
		}
	})
}

// The kill switch counts if it exists, whatever its file type, and if its existence is unknown.
func TestKillSwitch(t *testing.T) {
	for name, test := range map[string]struct {
		make func(t *testing.T, file string)
		want string
	}{
		"none":                 {func(*testing.T, string) {}, ""},
		"an empty file":        {func(t *testing.T, file string) { writeTo(t, file, "") }, "exists"},
		"a file with a reason": {func(t *testing.T, file string) { writeTo(t, file, "why") }, "exists"},
		"a directory":          {func(t *testing.T, file string) { os.Mkdir(file, 0o700) }, "exists"},
		"a link to nowhere":    {func(t *testing.T, file string) { os.Symlink("nowhere", file) }, "exists"},
		"a FIFO":               {func(t *testing.T, file string) { syscall.Mkfifo(file, 0o600) }, "exists"},
		"below a file": {func(t *testing.T, file string) {
			writeTo(t, filepath.Dir(file), "")
		}, "may exist"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScript(t)
			s.settings.KillSwitch = "/etc/stop"
			if test.want != "may exist" {
				os.Mkdir(s.host.Files.Path("/etc"), 0o700)
			}
			test.make(t, s.host.Files.Path(s.settings.KillSwitch))
			got := KillSwitch(s.host.Files, s.settings.KillSwitch)
			if (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func writeTo(t *testing.T, file, content string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// On a node without suspicious or releasable objects, the apiserver is not asked whether releases are paused.
func TestQuietNodeIsNotAskedForItsPause(t *testing.T) {
	for name, test := range map[string]struct {
		verdict object.Verdict
		mode    Mode
		want    bool
	}{
		"at rest":       {object.Live, DryRun, false},
		"on":            {object.Live, On, true},
		"a candidate":   {object.Candidate, DryRun, true},
		"a leftover":    {object.Leftover, DryRun, true},
		"someone's own": {object.Foreign, Off, false},
	} {
		t.Run(name, func(t *testing.T) {
			s, asked := newScript(t), false
			for i := range s.there {
				s.there[i].Verdict = test.verdict
			}
			s.settings.Mode, s.settings.Kinds = test.mode, nil
			s.paused = func(context.Context, int) (string, error) { asked = true; return "paused", nil }
			outcome, err := s.runner().Release(t.Context(), s.report())
			if asked != test.want || err != nil || (outcome.Stopped != "") != test.want {
				t.Errorf("asked: %v, want %v; stopped %q, %v", asked, test.want, outcome.Stopped, err)
			}
		})
	}
}

// A guard that could not be asked is a different outcome from a closed one, and no failure of a release.
func TestGuardThatCannotBeAsked(t *testing.T) {
	for name, test := range map[string]struct {
		set           func(s *script)
		stop, unknown bool
	}{
		"open":                         {func(*script) {}, false, false},
		"paused":                       {func(s *script) { s.pauseFrom(1, "paused", nil) }, true, false},
		"whether it is paused unknown": {func(s *script) { s.pauseFrom(1, "", errScript) }, true, true},
		"the kill switch exists":       {func(s *script) { s.makeSwitch() }, true, false},
		"whether it exists is unknown": {func(s *script) { s.settings.KillSwitch = "/" + strings.Repeat("x", 5000) }, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScript(t)
				test.set(s)
				outcome, err := s.runner().Release(t.Context(), s.report())
				if (outcome.Stopped != "") != test.stop || outcome.Unknown != test.unknown || err != nil {
					t.Errorf("stopped %q, unknown %v, %v", outcome.Stopped, outcome.Unknown, err)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		s := newScript(t)
		s.pauseFrom(5, "", errScript)
		runner := s.runner()
		if _, err := runner.Release(t.Context(), s.report()); err != nil {
			t.Fatal(err)
		}
		records, _, err := runner.readJournal()
		if err != nil || len(failedInARow(records)) != 0 {
			t.Errorf("failures %v, %v", failedInARow(records), err)
		}
		if last := records[len(records)-1]; last.Result != CouldNotTell {
			t.Errorf("%+v", last)
		}
	})
}
