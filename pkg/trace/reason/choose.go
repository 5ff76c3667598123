package reason

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/record"
	"github.com/nodeagent/nodeagent/pkg/trace/stage"
)

// Result is the reason of a miss.
type Result struct {
	Reason Reason
	Class  Class
	Stage  stage.ID // the one that took the time
	Detail string   // the text or name that decided
	Others []Reason // other reasons found
}

// candidate is an error still in effect.
type candidate struct {
	reason Reason
	stage  stage.ID
	at     time.Time
	detail string
}

// Choose finds the reason of a miss at its deadline: an error that was not overcome, the open stage, or the stage that
// took the time, in this order. promised is the act's promised time.
func (o Overrides) Choose(t *record.Timeline, deadline time.Time, promised time.Duration) Result {
	stages := stage.Of(t, deadline)
	for _, rule := range []func() (Result, bool){
		func() (Result, bool) { return byError(t, stages, deadline) },
		func() (Result, bool) { return byOpenStage(t, stages, deadline) },
		func() (Result, bool) { return bySlowStage(t, promised) },
	} {
		if r, found := rule(); found {
			r.Class = classOf(r.Reason, r.Stage)
			if class, ok := o[r.Reason]; ok {
				r.Class = class
			}
			return r
		}
	}
	return Result{Reason: Unknown, Class: None}
}

func byError(t *record.Timeline, stages []stage.Stage, deadline time.Time) (Result, bool) {
	found := append(errorsOf(t, stages, deadline), ofContainers(t, deadline)...)
	if len(found) == 0 {
		return Result{}, false
	}
	deepest := slices.MaxFunc(found, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.stage, b.stage), a.at.Compare(b.at))
	})
	r := Result{Reason: deepest.reason, Stage: deepest.stage, Detail: deepest.detail}
	for _, f := range found {
		if f.reason != r.Reason && !slices.Contains(r.Others, f.reason) {
			r.Others = append(r.Others, f.reason)
		}
	}
	return r, true
}

// errorsOf returns the act's reported errors that were not overcome before the deadline.
func errorsOf(t *record.Timeline, stages []stage.Stage, deadline time.Time) (found []candidate) {
	if r, ok := disruptions()[t.Disruption]; ok && t.Act == record.Creation {
		found = append(found, candidate{r, stage.ReadinessGate, deadline, t.Disruption})
	}
	for _, e := range t.Errors {
		row, ok := Match(e.From, e.Text)
		if !ok || e.Arrival.After(deadline) || !belongs(t, row.Stage) || overcome(t, row.Stage, e.Container, stages, deadline) {
			continue
		}
		if (e.From == "FailedMount" || e.From == "FailedMapVolume") && t.At(record.Mounted).By(deadline) {
			continue // all volumes are mounted since
		}
		r := row.Reason
		if c := t.Container(e.Container); c != nil && r == "CrashLoopBackOff" {
			if c.StartFailed() || hookFailed(t, c.Name, deadline) {
				continue // kubelet waits before it retries: the error of the start or of the hook is the reason
			}
			if c.Init && t.Act == record.Creation && !t.At(record.Initialized).By(deadline) {
				found = append(found, candidate{"InitFailed", stage.Init, e.Arrival, c.Name})
				continue
			}
		}
		switch {
		case r == "CapacityExhausted" && t.Around.ExceedsNodes:
			r = "ImpossibleRequest"
		case r == "UnschedulableConstraints" && t.Around.FaultTaints && strings.Contains(e.Text, "untolerated taint"):
			r = "NodesTaintedByFaults"
		}
		found = append(found, candidate{r, row.Stage, e.Arrival, e.Text})
	}
	return found
}

func disruptions() map[string]Reason {
	return map[string]Reason{"PreemptionByScheduler": "Preempted", "DeletionByTaintManager": "EvictedByTaint",
		"EvictionByEvictionAPI": "EvictedByApi", "TerminationByKubelet": "EvictedByPressure"}
}

// belongs reports whether an error of a stage can delay an act. The errors of a start can delay an upgrade too; those
// of a deletion only a deletion.
func belongs(t *record.Timeline, id stage.ID) bool {
	switch {
	case t.Act == record.Refusal:
		return id == stage.Admit
	case t.Act == record.Deletion:
		return id[0] == 'd'
	case t.InPlace():
		return id[0] == 'u' || id[0] == 'c' && id >= stage.Pull
	}
	return id[0] == 'c' && id != stage.Admit
}

// overcome reports whether a stage ended before the deadline; for errors of a container, its own stage.
func overcome(t *record.Timeline, id stage.ID, container string, stages []stage.Stage, deadline time.Time) bool {
	if t.InPlace() {
		return t.At(record.ReadyAgain).By(deadline) || id < stage.BecomeReady && t.At(record.NewStarted).By(deadline)
	}
	if t.At(record.ContainersReady).By(deadline) && id[0] == 'c' && id <= stage.BecomeReady {
		return true
	}
	switch c := t.Container(container); {
	case c == nil:
	case id == stage.PostStart && c.Exited.Known():
		return false // kubelet ends the container of a failed hook
	case id <= stage.Start:
		p := t.FirstPull(container)
		return c.Started.By(deadline) || id == stage.Pull && p != nil && p.Ended.By(deadline)
	}
	switch id {
	case stage.Schedule:
		return t.At(record.Scheduled).By(deadline)
	case stage.Notice:
		return t.At(record.KubeletSaw).By(deadline)
	case stage.AdmitOnNode:
		return false // kubelet's refusal is final
	case stage.Attach:
		return t.At(record.Attached).By(deadline) || t.At(record.SandboxReady).By(deadline)
	}
	i := slices.IndexFunc(stages, func(s stage.Stage) bool { return s.ID == id })
	return i >= 0 && stages[i].End.By(deadline)
}

// ofContainers returns exits and failed probes of containers that explain why the pod is not ready.
func ofContainers(t *record.Timeline, deadline time.Time) (found []candidate) {
	if t.Act == record.Deletion || t.End().By(deadline) {
		return nil
	}
	for _, c := range t.Containers {
		ended, id := c.Exited.By(deadline) && !c.Ready, stage.BecomeReady
		if c.Init {
			id = stage.Init
		}
		switch {
		case c.Init && t.At(record.Initialized).By(deadline):
		case ended && c.ExitReason == "OOMKilled" && c.MemLimit:
			found = append(found, candidate{"OOMKilledByLimit", id, c.Exited.Arrival, c.Name})
		case ended && c.ExitReason == "OOMKilled":
			found = append(found, candidate{"OOMKilledByNode", id, c.Exited.Arrival, c.Name})
		case ended && c.Init && c.ExitCode != 0:
			found = append(found, candidate{"InitFailed", id, c.Exited.Arrival, c.Name})
		case ended && !c.Init && !c.StartFailed() && !hookFailed(t, c.Name, deadline):
			found = append(found, candidate{"CrashLoopBackOff", id, c.Exited.Arrival, c.Name})
		case c.Unhealthy && !c.Ready && !c.Init:
			found = append(found, candidate{"ProbeFailing", id, deadline.Add(-time.Hour), c.Name})
		}
	}
	return found
}

// hookFailed reports whether a container's PostStart hook failed: kubelet ends the container then.
func hookFailed(t *record.Timeline, container string, deadline time.Time) bool {
	return slices.ContainsFunc(t.Errors, func(e record.Error) bool {
		return e.Container == container && (e.From == "FailedPostStartHook" || e.From == "PostStartHookError") && !e.Arrival.After(deadline)
	})
}
