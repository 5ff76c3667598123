package kernellog

import (
	"fmt"
	"iter"
	"math/bits"
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

// all yields the members in ascending order.
func (s *set) all() iter.Seq[int] {
	return func(yield func(int) bool) {
		for i, word := range s {
			for ; word != 0; word &= word - 1 {
				if !yield(i*64 + bits.TrailingZeros64(word)) {
					return
				}
			}
		}
	}
}
func (s *set) empty() bool         { return *s == set{} }
func (s *set) union(o set) (u set) { u = *s; u.join(&o); return u }

// node is a state while the table is being built. Its children are a list, by their positions in the trie; 0 is none,
// since the root is no child.
type node struct {
	letter      byte // that leads to it
	child, next int32
	fail        int32
	found       set
}

// follow returns the child that a letter leads to; 0 for none.
func follow(trie []node, at int32, letter byte) int32 {
	at = trie[at].child
	for at != 0 && trie[at].letter != letter {
		at = trie[at].next
	}
	return at
}

// newAutomaton builds the table for literals, each with the rules that it belongs to. It refuses more than fit.
func newAutomaton(literals map[string]set) (*automaton, error) {
	texts := make([]string, 0, len(literals))
	for text := range literals {
		texts = append(texts, text)
	}
	slices.Sort(texts) // the same table each time
	states, before := 1, ""
	for _, text := range texts {
		states += len(text) - common(text, before)
		before = text
	}
	if states > maxStates {
		return nil, fmt.Errorf("the literals of all rules have %d different beginnings: at most %d are possible", states,
			maxStates)
	}
	trie := make([]node, 1, states)
	for _, text := range texts {
		at := int32(0)
		for i := range len(text) {
			child := follow(trie, at, text[i])
			if child == 0 {
				child = int32(len(trie)) //nolint:gosec // the literals of all rules are some 100 KB
				trie = append(trie, node{letter: text[i], next: trie[at].child})
				trie[at].child = child
			}
			at = child
		}
		trie[at].found = trie[at].found.union(literals[text])
	}
	return tabulate(trie, link(trie), texts), nil
}

// common returns how many bytes two texts begin with alike.
func common(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// link sets the failure links, each to the longest ending of a state's text that begins a literal, and returns the
// states with the shorter texts first.
func link(trie []node) (order []int32) {
	order = append(make([]int32, 0, len(trie)), 0)
	for i := 0; i < len(order); i++ {
		for child := trie[order[i]].child; child != 0; child = trie[child].next {
			order = append(order, child)
			if order[i] == 0 {
				continue
			}
			fail := trie[order[i]].fail
			for fail != 0 && follow(trie, fail, trie[child].letter) == 0 {
				fail = trie[fail].fail
			}
			trie[child].fail = follow(trie, fail, trie[child].letter)
		}
	}
	for _, at := range order[1:] {
		trie[at].found = trie[at].found.union(trie[trie[at].fail].found)
	}
	return order
}

// tabulate writes the complete table. Accepting states get the highest numbers, so that one comparison finds them.
func tabulate(trie []node, order []int32, texts []string) *automaton {
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
		for child := trie[at].child; child != 0; child = trie[child].next {
			row[a.class[trie[child].letter]] = number[child]
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
