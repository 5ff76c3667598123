package release

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/kinds"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

const uid1, uid2 = "11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"

var now = finding.Timestamp{Boot: "b", SinceBoot: 100 * time.Hour}

func ago(d time.Duration) finding.Timestamp {
	return finding.Timestamp{Boot: "b", SinceBoot: now.SinceBoot - d}
}

func leftover(kind object.Kind, uid, id string) object.Assessment {
	return object.Assessment{
		Object: object.Object{Kind: kind, ID: id, Pod: object.Pod{UID: uid, Namespace: "ns"},
			Identity: object.Identity{Runtime: object.RuntimeID{ID: "1"}}},
		Verdict: object.Leftover,
	}
}

func on() Policy {
	s := Defaults()
	s.Mode = On
	return Policy{Settings: s}
}

func TestPlanOrder(t *testing.T) {
	mount := func(point, plugin string, id int) object.Assessment {
		o := leftover(object.Mount, uid1, point+"#"+itoa(id))
		o.Identity = object.Identity{Mount: object.MountID{ID: id, Point: point, Type: "tmpfs"}}
		o.Facts = map[string]string{"plugin": plugin}
		return o
	}
	report := object.Report{Objects: []object.Assessment{
		leftover(object.PodDirectory, uid1, "/pods/1"),
		leftover(object.Cgroup, uid1, "/sys/fs/cgroup/pod1"),
		leftover(object.Cgroup, uid1, "/sys/fs/cgroup/pod1/c"),
		mount("/p/volumes/a", "x", 1), mount("/p/volumes/a", "x", 2), mount("/p/volumes/a/b", "x", 3),
		mount("/p/volume-subpaths/v/c/0", "subpath", 4),
		leftover(object.Link, uid1, "veth#3"), leftover(object.Netns, uid1, "/run/netns/cni-1"),
		leftover(object.CNIAttachment, uid1, "/cache"), leftover(object.Process, uid1, "7"),
		leftover(object.Container, uid1, "c"), leftover(object.Sandbox, uid1, "s"),
	}}
	var got []string
	for _, step := range Plan(report, on(), now) {
		if !step.Acts() {
			t.Errorf("%s is not done: %s", step.ID, step.Blocked)
		}
		got = append(got, string(step.Kind)+" "+step.ID)
	}
	want := []string{
		"sandbox s", "container c", "process 7", "cni-attachment /cache", "netns /run/netns/cni-1", "link veth#3",
		"mount /p/volume-subpaths/v/c/0#4", "mount /p/volumes/a/b#3", "mount /p/volumes/a#2", "mount /p/volumes/a#1",
		"cgroup /sys/fs/cgroup/pod1/c", "cgroup /sys/fs/cgroup/pod1", "pod-directory /pods/1",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestPlanNotNow(t *testing.T) {
	report := object.Report{Objects: []object.Assessment{leftover(object.Cgroup, uid1, "/c1"),
		leftover(object.Cgroup, uid2, "/c2")}}
	for name, test := range map[string]struct {
		policy func(*Policy)
		gates  []object.Gate
		want   []string // for the two pods, a part of the reason; empty: done
	}{
		"on":      {func(*Policy) {}, nil, []string{"", ""}},
		"dry run": {func(p *Policy) { p.Mode = DryRun }, nil, []string{"dry-run", "dry-run"}},
		"off":     {func(p *Policy) { p.Mode = Off }, nil, []string{"off", "off"}},
		"off beats kinds": {func(p *Policy) {
			p.Mode, p.Kinds = Off, map[object.Kind]Mode{object.Cgroup: On}
		}, nil, []string{"off", "off"}},
		"no settings": {func(p *Policy) { p.Settings = Settings{PodsPerHour: 9} }, nil, []string{"off", "off"}},
		"this kind only": {func(p *Policy) {
			p.Mode, p.Kinds = DryRun, map[object.Kind]Mode{object.Cgroup: On}
		}, nil, []string{"", ""}},
		"another kind": {func(p *Policy) {
			p.Mode, p.Kinds = DryRun, map[object.Kind]Mode{object.Link: On}
		}, nil, []string{"dry-run", "dry-run"}},
		"stopped": {func(p *Policy) { p.Node = []Guard{{Name: "x", Why: "kill switch"}} }, nil, []string{"kill switch", "kill switch"}},
		"closed gate": {func(*Policy) {}, []object.Gate{{Name: "g", Why: "no"}},
			[]string{"gate g is closed: no", "gate g"}},
		"opted out":     {func(p *Policy) { p.OptOut = []string{"ns"} }, nil, []string{"opted out", "opted out"}},
		"budget of one": {func(p *Policy) { p.PodsPerHour = 1 }, nil, []string{"", "budget"}},
		"budget is spent": {func(p *Policy) {
			p.PodsPerHour, p.Attempts = 1, map[string]Attempt{"x": {At: ago(time.Minute)}}
		}, nil, []string{"budget", "budget"}},
		"spent long ago": {func(p *Policy) {
			p.PodsPerHour, p.Attempts = 2, map[string]Attempt{"x": {At: ago(2 * time.Hour)}}
		}, nil, []string{"", ""}},
		"spent before a boot": {
			func(p *Policy) {
				p.PodsPerHour, p.Attempts = 2, map[string]Attempt{"x": {At: finding.Timestamp{Boot: "a",
					SinceBoot: 1e6 * time.Hour}}}
			}, nil, []string{"", ""},
		},
		"was cut off by a crash": {
			func(p *Policy) { p.PodsPerHour, p.Attempts = 1, map[string]Attempt{uid2: {At: ago(time.Minute)}} }, nil,
			[]string{"budget", ""}, // it has paid already
		},
		"could not be released": {
			func(p *Policy) { p.Attempts = map[string]Attempt{uid2: {At: ago(30 * time.Minute), Finished: true}} }, nil,
			[]string{"", "could not be released"},
		},
		"had nothing to do yet a moment ago": {
			func(p *Policy) {
				p.Attempts = map[string]Attempt{uid2: {At: ago(30 * time.Second), Finished: true, Idle: true}}
			}, nil,
			[]string{"", "could not be released"},
		},
		"had nothing to do yet": {
			func(p *Policy) {
				p.Attempts = map[string]Attempt{uid2: {At: ago(2 * time.Minute), Finished: true, Idle: true}}
			}, nil,
			[]string{"", ""},
		},
		"could not be released long ago": {
			func(p *Policy) {
				p.Attempts = map[string]Attempt{uid2: {At: ago(2 * time.Hour), Finished: true}}
			}, nil, []string{"", ""},
		},
	} {
		t.Run(name, func(t *testing.T) {
			policy := on()
			test.policy(&policy)
			report.Gates = test.gates
			steps := Plan(report, policy, now)
			if len(steps) != 2 {
				t.Fatalf("%d steps", len(steps))
			}
			for _, step := range steps {
				want := test.want[slices.Index([]string{uid1, uid2}, step.Pod.UID)]
				if step.Acts() != (want == "") || !strings.Contains(step.Blocked, want) {
					t.Errorf("%s: %q, want %q", step.Pod.UID, step.Blocked, want)
				}
			}
		})
	}
}

// While the verdict on one object of a pod is unknown, no object of the pod is released.
func TestPlanWaitsForTheUnknown(t *testing.T) {
	unknown := leftover(object.Process, uid2, "7")
	unknown.Verdict, unknown.Why = object.Unknown, "nobody could say"
	report := object.Report{Objects: []object.Assessment{leftover(object.Cgroup, uid1, "/c1"),
		leftover(object.Cgroup, uid2, "/c2"), unknown}}
	for _, step := range Plan(report, on(), now) {
		if step.Acts() != (step.Pod.UID == uid1) || !step.Acts() &&
			!strings.Contains(step.Blocked, "the verdict on its process 7 is unknown: nobody could say") {
			t.Errorf("%s: %q", step.Pod.UID, step.Blocked)
		}
	}
}

// One pod that can never be released does not use up the budget of the others.
func TestPlanFair(t *testing.T) {
	report := object.Report{Objects: []object.Assessment{leftover(object.Cgroup, uid1, "/c1"),
		leftover(object.Cgroup, uid2, "/c2")}}
	policy := on()
	policy.PodsPerHour, policy.RetryAfter = 1, 0
	policy.Attempts = map[string]Attempt{uid1: {At: ago(2 * time.Hour), Finished: true}}
	if steps := Plan(report, policy, now); steps[0].Pod.UID != uid2 || !steps[0].Acts() || steps[1].Acts() {
		t.Errorf("%+v", steps)
	}
}

var verdicts = []object.Verdict{object.Live, object.Leftover, object.Candidate, object.Unknown, object.Foreign,
	""}

func anyReport(t *rapid.T) object.Report {
	all := append(kinds.Kinds(), "something-new")
	report := object.Report{}
	for i := range rapid.IntRange(0, 20).Draw(t, "objects") {
		o := leftover(rapid.SampledFrom(all).Draw(t, "kind"), rapid.SampledFrom([]string{"", uid1, uid2}).Draw(t,
			"uid"), fmt.Sprint(i))
		o.Verdict = rapid.SampledFrom(verdicts).Draw(t, "verdict")
		o.SandboxID = rapid.SampledFrom([]string{"", "s1", "s2"}).Draw(t, "sandbox")
		report.Objects = append(report.Objects, o)
	}
	if rapid.Bool().Draw(t, "gate") {
		report.Gates = append(report.Gates, object.Gate{Name: "g", Open: rapid.Bool().Draw(t, "open")})
	}
	return report
}

func TestPlanProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		report, policy := anyReport(t), on()
		policy.Mode = rapid.SampledFrom([]Mode{On, Off, DryRun, "", "nonsense"}).Draw(t, "mode")
		policy.PodsPerHour = rapid.IntRange(0, 3).Draw(t, "budget")
		steps := Plan(report, policy, now)
		planned, acting := map[string]bool{}, map[string]bool{}
		for _, step := range steps {
			if step.Object.Verdict != object.Leftover {
				t.Fatalf("%s %s is %q", step.Kind, step.ID, step.Object.Verdict)
			}
			if planned[step.ID] {
				t.Fatalf("%s is planned twice", step.ID)
			}
			planned[step.ID] = true
			if step.Acts() {
				acting[step.Group] = true
				if policy.Mode != On || firstClosed(gateGuards(report)) != "" {
					t.Fatalf("%s acts in mode %q", step.ID, policy.Mode)
				}
			}
		}
		if len(acting) > policy.PodsPerHour {
			t.Fatalf("%d pods of a budget of %d", len(acting), policy.PodsPerHour)
		}
		for _, o := range report.Objects {
			if o.Verdict == object.Leftover && !planned[o.ID] {
				t.Fatalf("%s is missing", o.ID)
			}
		}
		if diff := cmp.Diff(ids(steps), ids(Plan(report, policy, now))); diff != "" {
			t.Fatal(diff)
		}
	})
}

func ids(steps []Step) (all []string) {
	for _, s := range steps {
		all = append(all, s.ID+s.Blocked)
	}
	return all
}
