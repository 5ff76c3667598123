package kinds_test

import (
	"os"
	"testing"

	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
	"github.com/nodeagent/nodeagent/pkg/inspect/kinds"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

func TestMain(m *testing.M) { os.Exit(mutatetest.Main(m)) }

// Each kind has one spec, with a lister.
func TestEachKindHasALister(t *testing.T) {
	seen := make(map[object.Kind]bool)
	for _, spec := range kinds.Specs() {
		if spec.List == nil || seen[spec.Kind] || spec.What == "" || spec.Harm == "" {
			t.Errorf("%+v", spec)
		}
		seen[spec.Kind] = true
	}
}
