package kernellog

import (
	"bytes"
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

// TestAutomaton compares the automaton with a search for each literal.
func TestAutomaton(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[abc]{0,40}`)
		literals := map[string]set{}
		all := rapid.SliceOfNDistinct(rapid.StringMatching(`\n?[abcd]{1,5}`), 1, 20, rapid.ID[string]).Draw(t, "literals")
		for i, literal := range all {
			var owner set
			owner.add(i * 12) // in all words of the set
			literals[literal] = owner
		}
		a, err := newAutomaton(literals)
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			line := []byte(text.Draw(t, "text"))
			var want set
			for literal, owner := range literals {
				if bytes.Contains([]byte("\n"+string(line)), []byte(literal)) {
					want.join(&owner)
				}
			}
			if got := a.find(line); got != want {
				t.Fatalf("%q with %q: %v, want %v", line, all, got, want)
			}
		}
	})
}

// TestAutomatonRefusesMoreThanFits: an oversized table is an error and does not wrap around.
func TestAutomatonRefusesMoreThanFits(t *testing.T) {
	literals := map[string]set{}
	for i := range maxStates / 5 {
		literals[fmt.Sprintf("%05d-%d", i, i%7)] = set{1}
	}
	if _, err := newAutomaton(literals); err != nil {
		t.Fatalf("fewer: %v", err)
	}
	for i := range maxStates {
		literals[fmt.Sprintf("other-%05d", i)] = set{1}
	}
	if _, err := newAutomaton(literals); err == nil {
		t.Error("accepted")
	}
}
