package kernellog

import (
	"fmt"
	"slices"
)

// automaton finds which of many literals occur in a text, in one pass over it and whatever their number (Aho and
// Corasick, 1975), as a complete table: one look-up for each byte, no backtracking, no allocation.
type automaton struct {
	class     [256]uint16 // bytes that no literal contains share class 0
	next      []uint16    // a row for each state: the class of the byte gives the next state
	start     uint16      // the state at the beginning of a text, as if a line break came before
	accepting uint16      // states from here on end a literal
	found     []set       // of the accepting states
	classes   uint32
}

// maxStates is what a table has room for: each letter of a literal is a state, unless another literal begins alike.
const maxStates = 1<<16 - 1

// set is a set of rules, by their position in the table; recoveries follow the rules.
type set [5]uint64

const setSize = len(set{}) * 64

func (s *set) add(i int)      { s[i/64] |= 1 << (i % 64) }
func (s *set) has(i int) bool { return s[i/64]&(1<<(i%64)) != 0 }
func (s *set) join(other *set) {
	s[0] |= other[0]
	s[1] |= other[1]
	s[2] |= other[2]
	s[3] |= other[3]
	s[4] |= other[4]
}
func (s *set) empty() bool         { return *s == set{} }
func (s *set) union(o set) (u set) { u = *s; u.join(&o); return u }

// node is a state while the table is being built.
type node struct {
	children map[byte]int
	fail     int
	found    set
}

// newAutomaton builds the table for literals, each with the rules that it belongs to. It refuses more than fit.
func newAutomaton(literals map[string]set) (*automaton, error) {
	trie := []node{{children: map[byte]int{}}}
	texts := make([]string, 0, len(literals))
	for text := range literals {
		texts = append(texts, text)
	}
	slices.Sort(texts) // the same table each time
	for _, text := range texts {
		at := 0
		for i := range len(text) {
			child, ok := trie[at].children[text[i]]
			if !ok {
				child = len(trie)
				trie = append(trie, node{children: map[byte]int{}})
				trie[at].children[text[i]] = child
			}
			at = child
		}
		trie[at].found = trie[at].found.union(literals[text])
	}
	if len(trie) > maxStates {
		return nil, fmt.Errorf("the literals of all rules have %d different beginnings: at most %d are possible",
			len(trie), maxStates)
	}
	return tabulate(trie, link(trie), texts), nil
}

// link sets the failure links, each to the longest ending of a state's text that begins a literal, and returns the
// states with the shorter texts first.
func link(trie []node) (order []int) {
	order = append(order, 0)
	for i := 0; i < len(order); i++ {
		for b, child := range trie[order[i]].children {
			order = append(order, child)
			if order[i] == 0 {
				continue
			}
			fail := trie[order[i]].fail
			for {
				if other, ok := trie[fail].children[b]; ok {
					trie[child].fail = other
					break
				}
				if fail == 0 {
					break
				}
				fail = trie[fail].fail
			}
		}
	}
	for _, at := range order[1:] {
		trie[at].found = trie[at].found.union(trie[trie[at].fail].found)
	}
	return order
}

// tabulate writes the complete table. Accepting states get the highest numbers, so that one comparison finds them.
func tabulate(trie []node, order []int, texts []string) *automaton {
	a := &automaton{classes: 1}
	for _, text := range texts {
		for i := range len(text) {
			if b := text[i]; a.class[b] == 0 {
				a.class[b] = uint16(a.classes)
				a.classes++
			}
		}
	}
	number := make([]uint16, len(trie))
	count := uint16(0)
	for _, accepting := range []bool{false, true} {
		if accepting {
			a.accepting = count
		}
		for _, at := range order {
			if trie[at].found.empty() != accepting {
				number[at] = count
				count++
				if accepting {
					a.found = append(a.found, trie[at].found)
				}
			}
		}
	}
	a.next = make([]uint16, uint32(count)*a.classes)
	for _, at := range order { // a state's failure link comes before it, so its row is complete
		row := a.row(number[at])
		if at != 0 {
			copy(row, a.row(number[trie[at].fail]))
		}
		for b, child := range trie[at].children {
			row[a.class[b]] = number[child]
		}
	}
	a.start = a.next[a.class['\n']]
	return a
}

// row is the states that follow a state.
func (a *automaton) row(state uint16) []uint16 { return a.next[uint32(state)*a.classes:][:a.classes] }

// find returns the owners of all literals that occur in text.
func (a *automaton) find(text []byte) (found set) {
	state := a.start
	next, class := a.next, &a.class
	for _, b := range text {
		state = next[uint32(state)*a.classes+uint32(class[b])]
		if state >= a.accepting {
			found.join(&a.found[state-a.accepting])
		}
	}
	return found
}
