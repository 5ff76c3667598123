package agent

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/remediate/release"
)

// leftoversCheck is the ID of the check that finds leftovers.
const leftoversCheck = "leftovers"

// activities turns the results of inspections and releases into transitions for the reporters. The reported state
// survives a restart, so no transition is reported twice and a leftover that disappeared meanwhile is noticed.
type activities struct {
	state    detect.StateStore
	log      *slog.Logger
	stateDir string // holds the journal of releases
	send     func([]finding.Activity)

	mu       sync.Mutex // guards the fields below
	reported reported
	started  bool // this run has taken a pass into account
}

// reported is the state that the reporters know. It is stored, so its fields are a format.
type reported struct {
	Leftovers map[string]*reportedLeftover `json:"leftovers"` // by objectKey
	Journal   finding.Timestamp            `json:"journal"`   // of the last reported record
}

type reportedLeftover struct {
	Found finding.Activity     `json:"found"`
	Plan  finding.ActivityKind `json:"plan,omitempty"` // ActionPlanned or ActionRefused, once reported
}

const activitiesKey = "activities"

func newActivities(state detect.StateStore, log *slog.Logger, stateDir string, now finding.Timestamp) *activities {
	a := &activities{state: state, log: log, stateDir: stateDir, send: func([]finding.Activity) {}}
	if data, ok := state.Load(activitiesKey); ok {
		if err := json.Unmarshal(data, &a.reported); err != nil {
			log.Error("load the record of reported leftovers failed: reporting them again", "err", err)
		}
	}
	if a.reported.Leftovers == nil {
		a.reported.Leftovers = map[string]*reportedLeftover{}
	}
	if a.reported.Journal.IsZero() { // releases by versions that did not report them are history
		a.reported.Journal = now
		if records, _, err := release.ReadJournal(stateDir); err == nil && len(records) > 0 {
			a.reported.Journal = records[len(records)-1].At
		}
	}
	return a
}

// inspected reports which leftovers a pass found, and which earlier ones are gone.
func (a *activities) inspected(report object.Report) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.publish(a.reported.inspect(report, !a.started))
	a.started = true
}

// released reports the results of actions. Actions that ran are in the journal; those that did not run are only in the
// outcome.
func (a *activities) released(outcome release.Outcome, now finding.Timestamp) {
	a.mu.Lock()
	defer a.mu.Unlock()
	news := a.reported.plan(outcome, now)
	if slices.ContainsFunc(outcome.Pods, func(p release.PodOutcome) bool { return p.Result != release.NotActed }) ||
		len(outcome.CutOff) > 0 {
		records, _, err := release.ReadJournal(a.stateDir)
		if err != nil {
			a.log.Error("report releases failed", "err", err)
		}
		news = append(news, a.reported.journal(records)...)
	}
	a.publish(news)
}

func (a *activities) publish(news []finding.Activity) {
	if len(news) == 0 {
		return
	}
	a.send(news)
	if data, err := json.Marshal(a.reported); err == nil { // plain data: always encodable
		a.state.Save(activitiesKey, data)
	}
}

func objectKey(kind object.Kind, id string) string { return string(kind) + "/" + id }

func objectSubject(kind object.Kind, id string, pod object.Pod) finding.Subject {
	return finding.Subject{Kind: string(kind), Name: id, UID: pod.UID}
}

// podSubject names a pod by its UID. If its name is not known, the group stands for both.
func podSubject(pod object.Pod, group string) finding.Subject {
	name := strings.Trim(pod.Namespace+"/"+pod.Name, "/")
	if name == "" {
		name, pod.UID = group, group
	}
	return finding.Subject{Kind: "pod", Name: name, UID: pod.UID}
}

// inspect returns the changes of one pass. As in the tracker, an error does not prove that an object is gone.
func (r *reported) inspect(report object.Report, first bool) []finding.Activity {
	var news []finding.Activity
	here := map[string]*object.Assessment{} // present and former leftovers
	for i := range report.Objects {
		o := &report.Objects[i]
		if o.Verdict != object.Leftover && len(r.Leftovers) == 0 {
			continue
		}
		key := objectKey(o.Kind, o.ID)
		here[key] = o
		known := r.Leftovers[key]
		switch {
		case o.Verdict != object.Leftover:
		case known == nil:
			pod := podSubject(o.Pod, release.Group(o.Object))
			found := finding.NewActivity(finding.LeftoverFound, leftoversCheck, objectSubject(o.Kind, o.ID, o.Pod),
				report.At)
			found.Pod, found.Severity, found.Since = pod, finding.Warning, report.At
			found.Message = fmt.Sprintf("%s %s is left over from pod %s: %s", o.Kind, o.ID, pod.Name, o.Why)
			r.Leftovers[key] = &reportedLeftover{Found: found}
			news = append(news, found)
		case first:
			present := known.Found // keeps the ID of the transition that it repeats
			present.Kind = finding.LeftoverPresent
			news = append(news, present)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(r.Leftovers)) {
		o, listed := here[key]
		switch {
		case !listed && len(report.Errors) == 0:
			news = append(news, r.end(key, finding.LeftoverGone, "is gone", report.At))
		case listed && (o.Verdict == object.Live || o.Verdict == object.Foreign):
			news = append(news, r.end(key, finding.LeftoverGone, "is no longer a leftover: "+o.Why, report.At))
		}
	}
	return news
}

// end removes a leftover from the reported ones and returns its last transition.
func (r *reported) end(key string, kind finding.ActivityKind, what string, at finding.Timestamp) finding.Activity {
	found := r.Leftovers[key].Found
	delete(r.Leftovers, key)
	ended := finding.NewActivity(kind, leftoversCheck, found.Subject, at)
	ended.Pod, ended.Since = found.Pod, found.Since
	ended.Message = fmt.Sprintf("%s %s of pod %s %s", found.Subject.Kind, found.Subject.Name, found.Pod.Name, what)
	return ended
}

// plan returns which actions are newly planned or refused.
func (r *reported) plan(outcome release.Outcome, now finding.Timestamp) []finding.Activity {
	var news []finding.Activity
	for _, pod := range outcome.Pods {
		for _, step := range pod.Steps {
			kind, why := finding.ActionPlanned, step.Blocked
			if step.Result == release.Refused {
				kind, why = finding.ActionRefused, strings.TrimSpace(step.Blocked+" "+step.Error)
			}
			known := r.Leftovers[objectKey(step.Kind, step.ID)]
			planned := kind == finding.ActionRefused || pod.Result == release.NotActed && step.Mode != release.Off
			if known == nil || known.Plan == kind || !planned {
				continue
			}
			known.Plan = kind
			a := finding.NewActivity(kind, leftoversCheck, known.Found.Subject, now)
			a.Pod = known.Found.Pod
			a.Message = fmt.Sprintf("%s %s: %s: %s", step.Kind, step.ID, step.Description, why)
			news = append(news, a)
		}
	}
	return news
}

// attempt is one release of a pod, built from the journal.
type attempt struct {
	begin    finding.Timestamp
	pod      object.Pod // with its name, once a record contains it
	acted    bool       // a step was intended
	released map[string]int
	result   release.Result
	before   release.Result // of the previous attempt
}

// journal returns the activities since the last reported record. If that record is missing, the journal was rotated and
// all records are new. Attempts that ran no step and ended like the previous attempt are left out.
func (r *reported) journal(records []release.Record) []finding.Activity {
	var news []finding.Activity
	attempts := map[string]*attempt{}
	next := 1 + slices.IndexFunc(records, func(record release.Record) bool { return record.At == r.Journal })
	for i, record := range records {
		activities := r.record(attempts, record, i >= next)
		if i >= next {
			news = append(news, activities...)
			r.Journal = record.At
		}
	}
	return news
}

// record takes one record into account and returns its activities.
func (r *reported) record(attempts map[string]*attempt, record release.Record, isNew bool) []finding.Activity {
	try := attempts[record.Group]
	if try == nil {
		try = &attempt{}
		attempts[record.Group] = try
	}
	if record.Pod.Name != "" || try.pod == (object.Pod{}) {
		try.pod = record.Pod
	}
	pod := podSubject(try.pod, record.Group)
	activity := func(kind finding.ActivityKind, subject finding.Subject, at finding.Timestamp,
		message string) finding.Activity {
		a := finding.NewActivity(kind, leftoversCheck, subject, at)
		a.Pod, a.Message = pod, message
		if kind == finding.ActionFailed && record.Result != release.Interrupted {
			a.Severity = finding.Warning
		}
		return a
	}
	object := objectSubject(record.Kind, record.ID, record.Pod)
	var news []finding.Activity
	switch record.Event {
	case release.Begin:
		*try = attempt{begin: record.At, pod: try.pod, released: map[string]int{}, before: try.result}
	case release.Intent:
		if !try.acted && !try.begin.IsZero() { // a release from quarantine has no beginning
			news = append(news, activity(finding.ActionStarted, pod, try.begin,
				fmt.Sprintf("releasing leftovers of pod %s", pod.Name)))
		}
		try.acted = true
		news = append(news, activity(finding.ActionStarted, object, record.At, record.Does))
	case release.End:
		kind := endOf(record.Result, finding.ActionDone)
		news = append(news, activity(kind, object, record.At,
			fmt.Sprintf("%s %s of pod %s: %s", record.Kind, record.ID, pod.Name, because(record))))
		if key := objectKey(record.Kind, record.ID); record.Result == release.Released {
			if try.released != nil {
				try.released[string(record.Kind)]++
			}
			if isNew && r.Leftovers[key] != nil {
				news = append(news, r.end(key, finding.LeftoverReleased, "was released", record.At))
			}
		}
	case release.Finish:
		try.result = record.Result
		kind := endOf(record.Result, finding.ActionVerified)
		message := fmt.Sprintf("leftovers of pod %s were not released: %s", pod.Name, because(record))
		if kind == finding.ActionVerified {
			message = fmt.Sprintf("leftovers of pod %s are released: %s", pod.Name, countText(try.released))
		}
		a := activity(kind, pod, record.At, message)
		a.Repeated = try.result == try.before
		if try.acted || !a.Repeated && kind != finding.ActionVerified {
			news = append(news, a)
		}
	}
	return news
}

// endOf maps a result in the journal to an activity kind.
func endOf(result release.Result, success finding.ActivityKind) finding.ActivityKind {
	switch result {
	case release.Released, release.Vanished:
		return success
	case release.Refused, release.Stopped, release.NotActed, release.Blocked:
		return finding.ActionRefused
	}
	return finding.ActionFailed // incomplete, interrupted and could-not-tell too: the release is not proven
}

func because(record release.Record) string {
	return strings.TrimSuffix(string(record.Result)+": "+record.Why, ": ")
}

// countText says how many objects there are of each kind.
func countText(kinds map[string]int) string {
	var parts []string
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		parts = append(parts, fmt.Sprintf("%d %s", kinds[kind], kind))
	}
	return strings.Join(parts, ", ")
}
