package condition

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/report"
)

// Removal returns the strategic merge patch of nodes/status that removes these conditions from a Node, if it has them.
func Removal(names []string) ([]byte, error) {
	return encode(nil, slices.Sorted(slices.Values(names)), metav1.Time{})
}

// Names returns the condition names of these namings in a vocabulary, sorted.
func Names(namings []finding.Condition, v Vocabulary) []string {
	names := map[string]bool{}
	for _, n := range namings {
		if name := v.Name(n); name != "" {
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// Retire removes every condition that the agent of this store has written to the Node, and returns their names: no
// agent will update them any more. It does not touch conditions of other writers.
func Retire(ctx context.Context, node Node, store report.Store) ([]string, error) {
	var names []string
	err := store.ForEach(func(name string, value []byte) error {
		var r record
		if json.Unmarshal(value, &r) == nil && r.Written {
			names = append(names, name)
		}
		return nil
	})
	if err != nil || len(names) == 0 {
		return nil, err
	}
	patch, err := Removal(names)
	if err != nil {
		return nil, err
	}
	if err := node.PatchNodeStatus(ctx, patch); err != nil {
		return nil, fmt.Errorf("remove node conditions: %w", err)
	}
	for _, name := range names {
		if err := store.Delete(name); err != nil {
			return names, err
		}
	}
	return names, nil
}
