package kernellog

import (
	"fmt"
	"iter"
	"math/bits"
	"slices"
)

// automaton finds which of many literals occur in a text, in one pass whatever their number (Aho and Corasick, 1975),
// without allocation. Its states are numbered by the length of their texts, the children of each state consecutively.
// The short states, where most bytes of most texts end, have complete rows: one look-up for each byte. The other states
// only have the transitions of the literals: a complete table of all states is ten times as large.
type automaton struct {
	class    [256]uint16 // bytes that no literal contains share class 0
	classes  uint32
	rows     []uint16 // a row for each short state: the class of the byte gives the next state
	short    uint16   // number of states with a row
	start    uint16   // the state at the start of a text, as after a line break
	letter   []byte   // of each state: the byte that leads to it
	children []uint16 // of each state, its first child; they end where those of the next state begin
	fail     []uint16 // of each state, the longest suffix of its text with a state
	ends     []uint16 // of each state, the position in found of the literals that its text ends with; 0 for none
	found    []set
}

// complete is the text length up to which states have a row: three bytes are not faster.
const complete = 2

// maxStates is the capacity of a table: each letter of a literal is a state, unless it is in a common prefix with
// another literal.
const maxStates = 1<<16 - 2

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

// node is a state while the table is being built. Its children are a list of positions in the trie; 0 is none, since
// the root is never a child.
type node struct {
	letter      byte // the byte that leads to it
	child, next int32
	fail        int32
	found       set
}

// follow returns the child for a letter; 0 for none.
func follow(trie []node, at int32, letter byte) int32 {
	at = trie[at].child
	for at != 0 && trie[at].letter != letter {
		at = trie[at].next
	}
	return at
}

// newAutomaton builds the table for literals, each with the rules it belongs to. It returns an error if they do not
// fit.
func newAutomaton(literals map[string]set) (*automaton, error) {
	texts := make([]string, 0, len(literals))
	for text := range literals {
		texts = append(texts, text)
	}
	slices.Sort(texts) // for a deterministic table
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

// common returns the length of the common prefix of two texts.
func common(a, b string) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}

// link sets the failure links, each to the longest suffix of a state's text that is a prefix of a literal, and returns
// the states ordered by the length of their texts.
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

// tabulate numbers the states in this order and writes the tables.
func tabulate(trie []node, order []int32, texts []string) *automaton {
	a := &automaton{
		classes: 1, found: make([]set, 1), letter: make([]byte, len(order)), fail: make([]uint16, len(order)),
		ends: make([]uint16, len(order)), children: make([]uint16, len(order)+1),
	}
	for _, text := range texts {
		for i := range len(text) {
			if b := text[i]; a.class[b] == 0 {
				a.class[b] = uint16(a.classes)
				a.classes++
			}
		}
	}
	number := make([]uint16, len(trie))
	for i, at := range order {
		number[at] = uint16(i) //nolint:gosec // at most maxStates
	}
	depth, next := make([]uint8, len(order)), uint16(1) // the root is never a child
	for i, at := range order {
		a.letter[i], a.fail[i], a.children[i] = trie[at].letter, number[trie[at].fail], next
		if !trie[at].found.empty() {
			a.ends[i] = uint16(len(a.found)) //nolint:gosec // at most one for each state
			a.found = append(a.found, trie[at].found)
		}
		for child := trie[at].child; child != 0; child = trie[child].next {
			depth[next] = min(depth[i]+1, complete+1)
			next++
		}
		if depth[i] <= complete {
			a.short++
		}
	}
	a.children[len(order)] = next
	a.rows = make([]uint16, uint32(a.short)*a.classes)
	for i := range a.short { // a state's failure link comes before it, so its row is complete
		row := a.rows[uint32(i)*a.classes:][:a.classes]
		if i != 0 {
			copy(row, a.rows[uint32(a.fail[i])*a.classes:])
		}
		for child := a.children[i]; child < a.children[i+1]; child++ {
			row[a.class[a.letter[child]]] = child
		}
	}
	a.start = a.rows[a.class['\n']]
	return a
}

// find returns the owners of all literals that occur in text.
func (a *automaton) find(text []byte) (found set) {
	state := a.start
	for _, b := range text {
		state = a.step(state, b)
		if end := a.ends[state]; end != 0 {
			found.join(&a.found[end])
		}
	}
	return found
}

// step returns the next state.
func (a *automaton) step(state uint16, b byte) uint16 {
	for state >= a.short {
		end := a.children[state+1]
		for child := a.children[state]; child < end; child++ {
			if a.letter[child] == b {
				return child
			}
		}
		state = a.fail[state]
	}
	return a.rows[uint32(state)*a.classes+uint32(a.class[b])]
}
