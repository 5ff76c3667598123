package listers

import (
	"testing"

	"github.com/nodeagent/nodeagent/pkg/inspect"
)

// Each kind has one lister: here if it is report-only, or if its spec has none.
func TestEachKindHasALister(t *testing.T) {
	listers := All()
	for _, spec := range inspect.Specs() {
		here := listers[spec.Kind] != nil
		if (spec.List != nil) == here || spec.ReportOnly != "" && !here {
			t.Errorf("%s: a lister of its own %t, here %t, report-only %q", spec.Kind, spec.List != nil, here,
				spec.ReportOnly)
		}
		delete(listers, spec.Kind)
	}
	for kind := range listers {
		t.Errorf("%s is no kind", kind)
	}
}
