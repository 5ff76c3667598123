package verdict

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/pkg/inspect/witness"
)

// Each gate says who can open it.
func TestClosedGatesSayWhoOpensThem(t *testing.T) {
	report, _ := Evaluate([]object.Object{inspecttest.Object(object.Mount, dead)}, witness.Inventory{}, nil,
		object.Settings{}, inspecttest.Hour)
	texts := map[string]string{}
	for _, g := range report.Gates {
		text := gate{Gate: g}.opens()
		if !strings.HasPrefix(text, "by itself") && !strings.HasPrefix(text, "an administrator") {
			t.Errorf("%s: %q", g.Name, text)
		}
		texts[g.Name] = text
		if g.Open && (g.Opens != "" || !g.Since.IsZero()) || !g.Open && (g.Opens != text || g.Since != inspecttest.Hour) {
			t.Errorf("%+v", g)
		}
	}
	if diff := cmp.Diff(14, len(texts)); diff != "" {
		t.Error(diff)
	}
}
