package release

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// Objects that are only reported block no release, are in no plan, and are no reason to retry.
func TestReportedOnlyHindersNoRelease(t *testing.T) { synctest.Test(t, reportedOnly) }

func reportedOnly(t *testing.T) {
	s := newScript(t)
	report := s.report()
	unknown := leftover(object.LogLink, uid1, "b")
	unknown.Verdict = object.Unknown
	reported := []object.Assessment{leftover(object.LogLink, uid1, "a"), unknown}
	s.confirm = func(_ context.Context, _ int, report *object.Report) error {
		report.Objects = append(report.Objects, reported...)
		report.Errors = append(report.Errors, object.Failure{What: string(object.LogLink), Error: "cannot be read"})
		return nil
	}
	report.Objects = append(report.Objects, reported...)
	steps, err := s.runner().Plan(t.Context(), report)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range steps {
		if step.Kind == object.LogLink {
			t.Errorf("%s %s is planned", step.Kind, step.ID)
		}
	}
	outcome, err := s.runner().Release(t.Context(), report)
	if err != nil || len(outcome.Pods) != 1 || outcome.Pods[0].Result != Released {
		t.Errorf("%v: %s", err, describe(outcome))
	}
}
