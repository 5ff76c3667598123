package repair

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/remediate/release"
)

// Step is one repair that could be done.
type Step struct {
	Action  Name            `json:"action"`
	Check   string          `json:"check"`
	Subject finding.Subject `json:"subject"`
	Reason  string          `json:"reason"`
	Mode    release.Mode    `json:"mode"`
	Does    string          `json:"does,omitempty"`     // what would be done, if known
	Blocked string          `json:"notActed,omitempty"` // why it will not be done; empty: it will
	Refused bool            `json:"refused,omitempty"`  // because of the state of the node

	believed finding.Believed
	action   Action
	opens    string // who opens the gate that holds it, and when; empty: none holds it
}

// Acts reports whether the step will run.
func (s Step) Acts() bool { return s.Blocked == "" }

// same reports whether an attempt had the same subject and action.
func (s Step) same(a attempt) bool {
	return a.Action == s.Action && a.Check == s.Check && a.Subject == s.Subject
}

// stopped returns why all repairs are stopped: too many have failed.
func stopped(all []attempt, s Settings, now finding.Timestamp) string {
	var failures []finding.Timestamp
	for _, a := range all {
		if a.failed() {
			failures = append(failures, a.At)
		}
	}
	return release.Halt("repairs", failures, s.StopAfter, now)
}

// plan lists the possible steps for believed findings, in the order of the actions, each with the reason if it will not
// run. It is pure.
func plan(actions []Action, state finding.State, all []attempt, s Settings, now finding.Timestamp) []Step {
	var steps []Step
	for _, action := range actions {
		mode := s.ModeOf(action)
		if mode == release.Off {
			continue
		}
		for _, b := range state.Raised() {
			if !action.answers(s, b.Finding) {
				continue
			}
			step := Step{Action: action.Name, Check: b.Check, Subject: b.Subject, Reason: b.Reason, Mode: mode,
				believed: b, action: action}
			step.Blocked = blocked(step, all, s, now)
			steps = append(steps, step)
		}
	}
	return steps
}

// blocked returns why a step does not run now, as far as this is known without a look at the node.
func blocked(step Step, all []attempt, s Settings, now finding.Timestamp) string {
	if step.Mode != release.On {
		return fmt.Sprintf("the mode of %s is %s", step.Action, step.Mode)
	}
	if age := now.Since(step.believed.Raised); age < s.MinAge {
		return fmt.Sprintf("waiting: the finding is %s old; its owner has %s to act first", age.Round(time.Second), s.MinAge)
	}
	window := ""
	if step.action.Disrupts {
		window = closedWindow(s.Windows, now.Wall.Local())
	}
	return cmp.Or(stopped(all, s, now), window, step.after(all), step.ladder(all), step.undone(all, now),
		step.interval(all, now), step.backOff(all, s, now), step.budget(all, s, now))
}

// needsHelp is the prefix of the reason if a step needs a person.
const needsHelp = "needs help: "

// ladder returns why this occurrence of a finding needs a person.
func (s Step) ladder(all []attempt) string {
	for _, a := range all {
		if s.action.Once && s.same(a) && a.Finding == s.believed.ID && a.acted() {
			return fmt.Sprintf(needsHelp+"it was done once already, %s: %s", a.At.Wall.Local().Format(time.DateTime),
				cmp.Or(string(a.result), string(release.Interrupted)))
		}
	}
	return ""
}

// after returns why another action comes first.
func (s Step) after(all []attempt) string {
	first := s
	first.Action = s.action.After
	if s.action.After == "" || slices.ContainsFunc(all, func(a attempt) bool {
		return first.same(a) && a.Finding == s.believed.ID && a.failed()
	}) {
		return ""
	}
	return fmt.Sprintf("waiting: %s comes first, and must have failed", s.action.After)
}

// maxTurns is how often within a day a repair may be followed by one of another fault and be needed again.
const maxTurns = 2

// undone returns why a step needs a person although each of its repairs helped: after each one another fault was
// repaired, and then this one was back. Two actions that undo each other would take turns until the day's budget is
// spent, every day, and starve all others.
func (s Step) undone(all []attempt, now finding.Timestamp) string {
	turns, helped := map[Name]int{}, false
	for _, a := range all {
		switch {
		case now.Since(a.At) >= day || !a.acted():
		case s.same(a):
			helped = a.result == Verified
		case helped && (a.Check != s.Check || a.Subject != s.Subject):
			turns[a.Action]++
			helped = false
		}
	}
	for _, other := range slices.Sorted(maps.Keys(turns)) {
		if n := turns[other]; n >= maxTurns && !helped {
			return fmt.Sprintf(needsHelp+"%s and %s undo each other: %d times within a day, one was done after the other, "+
				"and the fault came back", s.Action, other, n)
		}
	}
	return ""
}

// interval returns why the action does not run again so soon.
func (s Step) interval(all []attempt, now finding.Timestamp) string {
	for _, a := range all {
		if since := now.Since(a.At); a.Action == s.Action && a.acted() && since < s.action.Every {
			return fmt.Sprintf("%s was done %s ago; at most once in %s", s.Action, since.Round(time.Second), s.action.Every)
		}
	}
	return ""
}

// maxBackOff limits the wait after a failed repair.
const maxBackOff = day

// backOff returns why the same repair is not tried again yet. Every unverified attempt within a day doubles the wait,
// so that one refused right before its step does not fill the journal either.
func (s Step) backOff(all []attempt, settings Settings, now finding.Timestamp) string {
	wait := settings.RetryAfter
	var last attempt
	for _, a := range all {
		if !s.same(a) || a.result == Verified || now.Since(a.At) >= day {
			continue
		}
		if !last.At.IsZero() {
			wait = min(2*wait, maxBackOff)
		}
		last = a
	}
	if since := now.Since(last.At); !last.At.IsZero() && since < wait {
		return fmt.Sprintf("was tried %s ago (%s: %s); next try after %s", since.Round(time.Second),
			cmp.Or(last.result, release.Interrupted), cmp.Or(last.why, "the agent ended"), wait)
	}
	return ""
}

// budget returns why no more repairs begin now. An attempt counts from its intent, whatever its result.
func (s Step) budget(all []attempt, settings Settings, now finding.Timestamp) string {
	if count(all, now, time.Hour, anyAttempt) >= settings.PerHour {
		return fmt.Sprintf("budget: %d repairs in the last hour", settings.PerHour)
	}
	if count(all, now, day, anyAttempt) >= settings.PerDay {
		return fmt.Sprintf("budget: %d repairs in the last day", settings.PerDay)
	}
	if s.action.PerDay == nil {
		return ""
	}
	most := s.action.PerDay(settings)
	if count(all, now, day, func(a attempt) bool { return a.Action == s.Action }) >= most {
		return fmt.Sprintf("budget: %s was done %d times in the last day", s.Action, most)
	}
	return ""
}
