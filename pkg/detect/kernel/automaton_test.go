package kernel

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"
)

// TestAutomaton compares it with a search for each literal.
func TestAutomaton(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[abc]{0,40}`)
		literals := map[string]set{}
		all := rapid.SliceOfNDistinct(rapid.StringMatching(`[abcd]{1,5}`), 1, 20, rapid.ID[string]).Draw(t, "literals")
		for i, literal := range all {
			var owner set
			owner.add(i * 12) // in all words of the set
			literals[literal] = owner
		}
		a := newAutomaton(literals)
		for range 20 {
			line := []byte(text.Draw(t, "text"))
			var want set
			for literal, owner := range literals {
				if bytes.Contains(line, []byte(literal)) {
					want.join(&owner)
				}
			}
			if got := a.find(line); got != want {
				t.Fatalf("%q with %q: %v, want %v", line, all, got, want)
			}
		}
	})
}
