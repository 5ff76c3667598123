package finding

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// at returns a timestamp some seconds after boot.
func at(seconds int) Timestamp {
	up := time.Duration(seconds) * time.Second
	return Timestamp{Wall: time.Unix(1_800_000_000, 0).UTC().Add(up), Boot: "boot-1", SinceBoot: up}
}

func disk(severity Severity, reason string) Finding {
	return Finding{Check: "disk", Subject: Subject{Kind: "filesystem", Name: "/data"}, Severity: severity,
		Reason: reason, Message: "m"}
}

// republished is a finding whose changed messages are reported.
func republished(message string) Finding {
	f := disk(Fatal, "ReadOnly")
	f.Message, f.RepublishMessage = message, true
	return f
}

// summary is a short form of the updates that a test expects.
func summary(updates []Update) []string {
	var short []string
	for _, u := range updates {
		switch u.Kind {
		case StatusChanged:
			short = append(short, string(u.From)+"→"+string(u.To))
		default:
			short = append(short, string(u.Kind)+" "+u.Finding.Reason)
		}
	}
	return short
}

func TestTracker(t *testing.T) {
	broken := errors.New("read /proc/x: no such file")
	bad, belowRaise := disk(Fatal, "ReadOnly"), disk(Fatal, "ReadOnly")
	belowRaise.BelowRaise = true
	certain := disk(Fatal, "ReadOnly")
	certain.Certain = true
	type step struct {
		at       Timestamp
		findings []Finding
		err      error
		want     []string
	}
	for _, test := range []struct {
		name   string
		policy Policy
		steps  []step
	}{
		{"unknown until the first conclusive observation", Policy{}, []step{
			{at(1), nil, broken, nil},
			{at(2), nil, nil, []string{"unknown→healthy"}},
		}},
		{"raise and clear at once", Policy{}, []step{
			{at(1), []Finding{bad}, nil, []string{"raised ReadOnly", "unknown→faulty"}},
			{at(2), nil, nil, []string{"cleared ReadOnly", "faulty→healthy"}},
		}},
		{"an error neither raises nor clears", Policy{}, []step{
			{at(1), []Finding{bad}, nil, []string{"raised ReadOnly", "unknown→faulty"}},
			{at(2), nil, broken, nil},
			{at(3), []Finding{bad}, nil, nil},
		}},
		{"findings beside an error raise, absence beside an error proves nothing", Policy{}, []step{
			{at(1), []Finding{bad}, broken, []string{"raised ReadOnly", "unknown→faulty"}},
			{at(2), nil, broken, nil},
		}},
		{"a partial error leaves only its subjects in doubt", Policy{}, []step{
			{at(1), []Finding{bad}, nil, []string{"raised ReadOnly", "unknown→faulty"}},
			{at(2), nil, Partial(map[Subject]error{bad.Subject: broken}), nil},
			{at(3), nil, Partial(map[Subject]error{{Kind: "filesystem", Name: "/other"}: broken}),
				[]string{"cleared ReadOnly", "faulty→healthy"}},
		}},
		{"another message is published where the finding asks for it", Policy{}, []step{
			{at(1), []Finding{republished("a")}, nil, []string{"raised ReadOnly", "unknown→faulty"}},
			{at(2), []Finding{republished("a")}, nil, nil},
			{at(3), []Finding{republished("b")}, nil, []string{"changed ReadOnly"}},
			{at(4), []Finding{republished("a")}, nil, []string{"changed ReadOnly"}},
		}},
		{"it must last to be believed", Policy{Raise: Hold{Runs: 2, For: 10 * time.Second}}, []step{
			{at(1), []Finding{bad}, nil, []string{"unknown→healthy"}},
			{at(5), []Finding{bad}, nil, nil},
			{at(11), []Finding{bad}, nil, []string{"raised ReadOnly", "healthy→faulty"}},
		}},
		{"what one observation proves is believed at once", Policy{Raise: Hold{Runs: 3, For: time.Minute}}, []step{
			{at(1), []Finding{bad}, nil, []string{"unknown→healthy"}},
			{at(2), []Finding{certain}, nil, []string{"raised ReadOnly", "healthy→faulty"}},
		}},
		{"a gap begins the streak anew", Policy{Raise: Hold{Runs: 2}}, []step{
			{at(1), []Finding{bad}, nil, []string{"unknown→healthy"}},
			{at(2), nil, nil, nil},
			{at(3), []Finding{bad}, nil, nil},
			{at(4), []Finding{bad}, nil, []string{"raised ReadOnly", "healthy→faulty"}},
		}},
		{"a finding below the threshold to raise keeps what is believed and begins nothing", Policy{}, []step{
			{at(1), []Finding{belowRaise}, nil, []string{"unknown→healthy"}},
			{at(2), []Finding{bad}, nil, []string{"raised ReadOnly", "healthy→faulty"}},
			{at(3), []Finding{belowRaise}, nil, nil},
			{at(4), nil, nil, []string{"cleared ReadOnly", "faulty→healthy"}},
		}},
		{"another reason is a change, not another fault", Policy{}, []step{
			{at(1), []Finding{bad}, nil, []string{"raised ReadOnly", "unknown→faulty"}},
			{at(2), []Finding{disk(Fatal, "DeviceGone")}, nil, []string{"changed DeviceGone"}},
			{at(3), []Finding{disk(Warning, "DeviceGone")}, nil, []string{"changed DeviceGone", "faulty→healthy"}},
		}},
		{"blind for too long is unknown and is a finding; the fault is not cleared by it",
			Policy{BlindAfter: time.Minute}, []step{
				{at(1), []Finding{bad}, nil, []string{"raised ReadOnly", "unknown→faulty"}},
				{at(60), nil, broken, nil},
				{at(61), nil, broken, []string{"raised CheckCouldNotTell", "faulty→unknown"}},
				{at(90), nil, broken, nil},
				{at(95), []Finding{bad}, nil, []string{"cleared CheckCouldNotTell", "unknown→faulty"}},
			}},
		{"not applicable clears", Policy{}, []step{
			{at(1), []Finding{bad}, nil, []string{"raised ReadOnly", "unknown→faulty"}},
			{at(2), nil, NotApplicable("no disk"), []string{"cleared ReadOnly", "faulty→not-applicable"}},
		}},
		{"what flaps must in the end be absent longer each time", Policy{}, []step{
			{at(1), []Finding{bad}, nil, []string{"raised ReadOnly", "unknown→faulty"}},
			{at(2), nil, nil, []string{"cleared ReadOnly", "faulty→healthy"}},
			{at(3), []Finding{bad}, nil, []string{"raised ReadOnly", "healthy→faulty"}},
			{at(4), nil, nil, []string{"cleared ReadOnly", "faulty→healthy"}},
			{at(5), []Finding{bad}, nil, []string{"raised ReadOnly", "healthy→faulty"}},
			{at(6), nil, nil, []string{"cleared ReadOnly", "faulty→healthy"}},
			{at(7), []Finding{bad}, nil, []string{"raised ReadOnly", "healthy→faulty"}},
			{at(8), nil, nil, nil},
			{at(67), nil, nil, nil},
			{at(68), nil, nil, []string{"cleared ReadOnly", "faulty→healthy"}},
		}},
		{"a malformed finding is an error, not a fault", Policy{}, []step{
			{at(1), []Finding{{Check: "disk"}}, nil, nil},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			tracker := NewTracker(map[string]Policy{"disk": test.policy}, nil)
			for i, s := range test.steps {
				got := summary(tracker.Observe(Observation{Check: "disk", At: s.at, Findings: s.findings, Err: s.err}))
				if diff := cmp.Diff(s.want, got); diff != "" {
					t.Fatalf("observation %d (-want +got):\n%s", i+1, diff)
				}
			}
		})
	}
}

func TestReboot(t *testing.T) {
	tracker := NewTracker(nil, nil)
	tracker.Observe(Observation{Check: "disk", At: at(100), Findings: []Finding{disk(Fatal, "ReadOnly")}})
	// the wall clock has gone back by years
	afterBoot := Timestamp{Wall: time.Unix(1, 0), Boot: "boot-2", SinceBoot: time.Second}
	if got := summary(tracker.Observe(Observation{Check: "disk", At: afterBoot,
		Err: errors.New("too early")})); !cmp.Equal(got, []string{"faulty→unknown"}) {
		t.Errorf("nothing is proven after a reboot: got %q", got)
	}
	afterBoot.SinceBoot = 2 * time.Second
	if got := summary(tracker.Observe(Observation{Check: "disk", At: afterBoot})); !cmp.Equal(got,
		[]string{"cleared ReadOnly", "unknown→healthy"}) {
		t.Errorf("gone with the reboot: got %q", got)
	}
}

// observations draws a sequence of observations of one check: seen, below the threshold to raise, absent, or an error,
// at increasing times.
func observations(t *rapid.T) []Observation {
	up := 0
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Observation {
		up += rapid.IntRange(1, 120).Draw(t, "gap")
		l := Observation{Check: "disk", At: at(up)}
		switch rapid.SampledFrom([]string{"bad", "worse", "below raise", "ok", "error", "partial"}).Draw(t, "result") {
		case "bad":
			l.Findings = []Finding{disk(Warning, "Slow")}
		case "worse":
			l.Findings = []Finding{disk(Fatal, "ReadOnly")}
		case "below raise":
			f := disk(Fatal, "ReadOnly")
			f.BelowRaise = true
			l.Findings = []Finding{f}
		case "error":
			l.Err = errors.New("could not read")
		case "partial":
			l.Err = Partial(map[Subject]error{disk(Fatal, "").Subject: errors.New("hung")})
		}
		return l
	}), 1, 60).Draw(t, "observations")
}

func policy(t *rapid.T) map[string]Policy {
	hold := rapid.Custom(func(t *rapid.T) Hold {
		return Hold{Runs: rapid.IntRange(0, 3).Draw(t, "runs"),
			For: time.Duration(rapid.IntRange(0, 200).Draw(t, "for")) * time.Second}
	})
	return map[string]Policy{"disk": {Raise: hold.Draw(t, "raise"), Clear: hold.Draw(t, "clear"),
		BlindAfter: time.Hour}}
}

// TestRestartChangesNothing: a tracker recreated from the saved state after every observation returns the same.
func TestRestartChangesNothing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		policies := policy(t)
		steady, restarted := NewTracker(policies, nil), NewTracker(policies, nil)
		for _, l := range observations(t) {
			want, got := steady.Observe(l), restarted.Observe(l)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("after a restart (-steady +restarted):\n%s", diff)
			}
			data, err := json.Marshal(restarted.State())
			if err != nil {
				t.Fatal(err)
			}
			var state State
			if err := json.Unmarshal(data, &state); err != nil {
				t.Fatal(err)
			}
			restarted = NewTracker(policies, state)
		}
	})
}

// TestErrorsAreNoEvidence: observations with an error neither raise nor clear, wherever they occur.
func TestErrorsAreNoEvidence(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tracker := NewTracker(policy(t), nil)
		for _, l := range observations(t) {
			updates := tracker.Observe(l)
			for _, u := range updates {
				if l.Err != nil && u.Kind != StatusChanged && u.Finding.Reason != blindReason {
					t.Fatalf("%v at an observation with an error: %v", u.Kind, l.Err)
				}
			}
		}
	})
}

// TestHoldsArePatience: a raised finding was seen for the whole hold, a cleared one was absent for the whole hold.
func TestHoldsArePatience(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		policies := policy(t)
		p, tracker := policies["disk"], NewTracker(policies, nil)
		var seen, absent []Timestamp
		for _, l := range observations(t) {
			switch {
			case l.Err != nil:
			case len(l.Findings) == 0:
				seen, absent = nil, append(absent, l.At)
			case !l.Findings[0].BelowRaise:
				seen, absent = append(seen, l.At), nil
			default:
				absent = nil
			}
			for _, u := range tracker.Observe(l) {
				streak, hold := seen, p.Raise
				switch u.Kind {
				case Cleared:
					streak, hold = absent, p.Clear
				case Changed, StatusChanged:
					continue
				}
				if len(streak) < max(1, hold.Runs) || l.At.Since(streak[0]) < hold.For {
					t.Fatalf("%s after %v, the hold is %v", u.Kind, streak, hold)
				}
			}
		}
	})
}

// TestNoiseDoesNotFlap: an hour of noise at the edge of a threshold changes a finding a handful of times, not hundreds.
func TestNoiseDoesNotFlap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tracker := NewTracker(nil, nil) // the least damped policy possible
		raises := 0
		for second := 10; second < 3600; second += 10 {
			l := Observation{Check: "disk", At: at(second)}
			if rapid.Bool().Draw(t, "over") {
				l.Findings = []Finding{disk(Warning, "Slow")}
			}
			for _, u := range tracker.Observe(l) {
				if u.Kind == Raised {
					raises++
				}
			}
		}
		if raises > 12 {
			t.Fatalf("raised %d times in an hour", raises)
		}
	})
}

func TestStateIsNotShared(t *testing.T) {
	tracker := NewTracker(nil, nil)
	tracker.Observe(Observation{Check: "disk", At: at(1), Findings: []Finding{disk(Fatal, "ReadOnly")}})
	before := tracker.State()
	want, _ := json.Marshal(before)
	tracker.Observe(Observation{Check: "disk", At: at(2), Findings: []Finding{disk(Warning, "DeviceGone")}})
	tracker.Observe(Observation{Check: "disk", At: at(3)})
	if got, _ := json.Marshal(before); string(got) != string(want) {
		t.Errorf("a later observation changed an earlier state:\n%s\n%s", want, got)
	}
}

// TestErrorDoesNotMakeHealthy: an inapplicable check does not become healthy because an observation failed.
func TestErrorDoesNotMakeHealthy(t *testing.T) {
	at := func(up time.Duration) Timestamp {
		return Timestamp{Boot: "b", SinceBoot: up, Wall: time.Unix(1e9, 0).Add(up)}
	}
	tracker := NewTracker(nil, nil)
	tracker.Observe(Observation{Check: "c", At: at(0), Err: NotApplicable("there is none")})
	tracker.Observe(Observation{Check: "c", At: at(time.Second), Err: errors.New("cut short")})
	if got := tracker.State()["c"]; got.Status != StatusNotApplicable || got.Err != "cut short" {
		t.Errorf("after an error: %s, error %q", got.Status, got.Err)
	}
	tracker.Observe(Observation{Check: "c", At: at(2 * time.Second)})
	if got := tracker.State()["c"]; got.Status != StatusHealthy || got.Why != "" {
		t.Errorf("after an observation without findings: %s, why %q", got.Status, got.Why)
	}
}

// The stored state of one check is bounded, whatever a broken host makes it report.
func TestSubjectsAreBounded(t *testing.T) {
	tracker := NewTracker(nil, nil)
	for run := range 3 {
		l := Observation{Check: "disk", At: at(run), Err: errors.New("cannot tell of others")}
		for i := range maxSubjects {
			l.Findings = append(l.Findings, Finding{Subject: Subject{Kind: "pod", Name: fmt.Sprintf("%d-%d", run, i)},
				Severity: Warning, Reason: "Bad"})
		}
		tracker.Observe(l)
	}
	state := tracker.State()["disk"]
	if n := len(state.Subjects); n != maxSubjects {
		t.Errorf("%d subjects are remembered, want %d", n, maxSubjects)
	}
	if len(state.Flaps) > maxSubjects {
		t.Errorf("raises of %d subjects are remembered", len(state.Flaps))
	}
}
