package agent

import (
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// A gate closed for an hour is a finding that names its reason and who can open it. Before that, and while the gate is
// open, there is no finding.
func TestClosedGateIsAFinding(t *testing.T) {
	at := func(d time.Duration) finding.Timestamp { return finding.Timestamp{Boot: "b", SinceBoot: d} }
	closed := func(name string, since time.Duration) object.Gate {
		return object.Gate{Name: name, Why: "why of " + name, Opens: "by a person", Since: at(since)}
	}
	findings := gateFindings(object.Report{At: at(3 * time.Hour), Gates: []object.Gate{
		{Name: "open", Open: true, Why: "fine"}, closed("old", 2*time.Hour), closed("young", 2*time.Hour+time.Second),
		closed("older", time.Hour), {Name: "not known since when"},
	}})
	var got []string
	for _, f := range findings {
		got = append(got, f.Subject.Name)
		if f.Severity != finding.Warning || f.SuggestedAction != finding.SuggestHuman ||
			!strings.Contains(f.Message, "why of "+f.Subject.Name+". It opens by a person") {
			t.Errorf("%+v", f)
		}
	}
	if strings.Join(got, " ") != "old older" {
		t.Errorf("findings about %v", got)
	}
}
