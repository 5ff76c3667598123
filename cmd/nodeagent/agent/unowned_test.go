package agent

import (
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// An object that cannot be attributed to a pod is reported once and does not cast doubt on the rest of the inspection.
// An object that is undecided because a witness did not answer does.
func TestUnownedObjectsKeepTheCheckConclusive(t *testing.T) {
	report := func(verdicts ...object.Verdict) object.Report {
		var r object.Report
		for _, v := range verdicts {
			r.Objects = append(r.Objects, object.Assessment{Object: object.Object{Kind: object.Netns,
				ID: "/run/netns/cni-1"}, Verdict: v})
		}
		return r
	}
	four := report(object.Unowned, object.Unowned, object.Unowned, object.Unowned, object.Live)
	if err := passError(four); err != nil {
		t.Errorf("the check learnt nothing: %v", err)
	}
	found := unownedFindings(four, "node-a")
	if len(found) != 1 || found[0].Subject.Name != "node-a" || !strings.Contains(found[0].Message, "4 objects") ||
		!strings.Contains(found[0].Message, "and 1 more") {
		t.Errorf("%+v", found)
	}
	if found := unownedFindings(report(object.Live, object.Foreign), "node-a"); len(found) != 0 {
		t.Errorf("%+v", found)
	}
	if err := passError(report(object.Unowned, object.Unknown)); err == nil {
		t.Error("an object that could not be evaluated is ignored")
	}
}
