package release

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/nodeagent/nodeagent/pkg/inspect"
)

// Objects that are only reported block no release, are in no plan, and are no reason to retry.
func TestReportedOnlyHindersNoRelease(t *testing.T) { synctest.Test(t, reportedOnly) }

func reportedOnly(t *testing.T) {
	s := newScript(t)
	report := s.report()
	unknown := leftover(inspect.LogLink, uid1, "b")
	unknown.Verdict = inspect.Unknown
	reported := []inspect.Assessment{leftover(inspect.LogLink, uid1, "a"), unknown}
	s.confirm = func(_ context.Context, _ int, report *inspect.Report) error {
		report.Objects = append(report.Objects, reported...)
		report.Errors = append(report.Errors, inspect.Failure{What: string(inspect.LogLink), Error: "cannot be read"})
		return nil
	}
	report.Objects = append(report.Objects, reported...)
	steps, err := s.runner().Plan(t.Context(), report)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range steps {
		if step.Kind == inspect.LogLink {
			t.Errorf("%s %s is planned", step.Kind, step.ID)
		}
	}
	outcome, err := s.runner().Release(t.Context(), report)
	if err != nil || len(outcome.Pods) != 1 || outcome.Pods[0].Result != Released {
		t.Errorf("%v: %s", err, describe(outcome))
	}
}
